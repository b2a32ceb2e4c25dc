"""Every method and every engine on a real GPU, against the CPU: `make test-gpu`. Skipped on a machine without CUDA.

The tolerance: after two rounds, no number of any record differs from the CPU's by more than TOLERANCE times the largest
number of its tensor, or times 1 if that is larger. All runs are in float64, where sums in another order differ by about
1e-15, so that a wrong number is not taken for rounding. Runs in float32 have the tolerance FLOAT32.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.engine.runners.vectorized import cannot_vectorize
from tests.gpu.pretended_runs import SMALL, dense_net, dropout_net, norm_net
from tests.tasks import digits_fed, full_only

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch.cuda.is_available() is False here"),
]

TOLERANCE, FLOAT32 = 1e-6, 1e-3
FED = digits_fed(6, concentration=10.0)
every = pytest.mark.parametrize("name", fk.algorithms())


def train(name: str = "scaffold", model: Any = SMALL, **kw: Any) -> fk.Run:
    cohort: Any = 6 if full_only(name) else [[0, 1, 2, 3], [2, 3, 4, 5], [0, 2, 4, 5]]
    settings: dict[str, Any] = {"rounds": 2, "cohort": cohort, "local_steps": 3, "batch_size": 16, "evaluate_every": 0}
    settings |= {"engine": "sequential", "dtype": torch.float64, **kw}
    return fk.train(model, FED, name, progress=False, **settings)


def close(a: fk.Run, b: fk.Run, tolerance: float = TOLERANCE) -> None:
    pairs = [(a.server, b.server), (tuple(a.model.buffers()), tuple(b.model.buffers()))]
    pairs += [(a.clients[i], b.clients[i]) for i in range(len(a.clients))]
    for one, other in pairs:
        assert (one is None) == (other is None)
        for x, y in zip(one or (), other or (), strict=True):
            x, y = x.cpu().double(), y.cpu().double()
            if y.numel():
                assert float((x - y).abs().max()) <= tolerance * max(1.0, float(y.abs().max()))
    for row in (*a.history, *b.history):
        assert row["dropped"] == 0, row["faults"]
    for one, other in zip(a.history, b.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=tolerance, abs=tolerance, nan_ok=True)


@every
def test_sequential(name: str) -> None:
    run = train(name, device="cuda")
    assert run.params.device.type == "cuda"
    close(run, train(name, device="cpu"))


@every
def test_vectorized(name: str) -> None:
    assert cannot_vectorize(dense_net()) is None
    close(
        train(name, dense_net, device="cuda", engine="vectorized"), train(name, dense_net, device="cpu", engine="vectorized")
    )


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_compiled(name: str) -> None:
    close(train(name, dense_net, device="cuda", engine="compiled"), train(name, dense_net, device="cpu"))


@every
def test_float32(name: str) -> None:
    close(*(train(name, dense_net, device=one, dtype=torch.float32, rounds=1) for one in ("cuda", "cpu")), FLOAT32)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn", "moon", "mime", "gradma"])
def test_normalisation_and_metrics(name: str) -> None:
    kw: dict[str, Any] = {"evaluate_every": 1, "metrics": ["train", "gradient_norm"], "weights": "samples", "clip": 1.0}
    close(train(name, norm_net, device="cuda", **kw), train(name, norm_net, device="cpu", **kw))


def test_auto_chooses_an_engine() -> None:
    assert train(device="auto", engine="auto").params.device.type == "cuda"


def test_ray() -> None:
    pytest.importorskip("ray")
    close(train(device="cuda", engine="ray", workers=2), train(device="cpu"))


# Random numbers -------------------------------------------------------------------------------------------------------


def test_dropout_depends_on_the_seed_only() -> None:
    """A GPU draws other numbers than the CPU, but the same ones in every run, whatever was drawn before."""
    one = train(model=dropout_net, device="cuda")
    torch.rand(7, device="cuda")
    two = train(model=dropout_net, device="cuda")
    close(one, two, 1e-12)
    other = train(model=dropout_net, device="cuda", seed=1)
    assert not torch.allclose(one.params, other.params)


def test_the_generators_of_the_user_stay() -> None:
    torch.manual_seed(3)
    torch.rand(1, device="cuda")
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    train(model=dropout_net, device="cuda")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaffold", "fedbn", "gradma", "mime"])
@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_checkpoint_goes_to_another_device(name: str, first: str, then: str, tmp_path: Any) -> None:
    train(name, norm_net, device=first, out=tmp_path / "a", rounds=2)
    run = train(name, norm_net, device=then, out=tmp_path / "a", rounds=3, resume=True)
    assert run.params.device.type == then
    close(run, train(name, norm_net, device="cpu", rounds=3))


# Several GPUs ---------------------------------------------------------------------------------------------------------

several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@several
@every
def test_two_gpus(name: str) -> None:
    close(train(name, devices=["cuda:0", "cuda:1"], engine="auto"), train(name, device="cpu"))


@several
def test_two_gpus_draw_as_one() -> None:
    close(train(model=dropout_net, devices="all", engine="auto"), train(model=dropout_net, device="cuda:0"), 1e-12)


def test_one_gpu_by_name() -> None:
    close(train(devices=["cuda:0"], engine="auto"), train(device="cpu"))


# Speed ----------------------------------------------------------------------------------------------------------------


def test_a_client_waits_for_the_gpu_once() -> None:
    """torch counts the places at which the host waits. They may grow with the clients of a round, not with their steps."""

    def waits(steps: int) -> int:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                train("fedavg", device="cuda", local_steps=steps)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(one.message) for one in found)

    train("fedavg", device="cuda")
    assert waits(20) == waits(2)
