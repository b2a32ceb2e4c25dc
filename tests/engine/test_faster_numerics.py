"""Memory formats and 16-bit arithmetic: the same bits from every engine, and results in the ordinary order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.core.flat import FlatModel
from tests.golden.tasks import CLIENTS, COHORT, COMMON, SETTINGS, clients, convolutional, dense, numbers
from tests.golden.test_golden import CLOSE
from tests.tasks import full_only

FASTER: list[dict[str, Any]] = [
    {"memory_format": "channels_last"},
    {"precision": "bf16"},
    {"memory_format": "channels_last", "precision": "bf16"},
]


def images() -> nn.Module:
    """Convolutions without buffers, one of them frozen."""
    model = nn.Sequential(
        nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(54, 10),
    )
    model[1][2].requires_grad_(False)
    return model


def train(method: str = "scaffold", model: Any = images, **changes: Any) -> fk.Run:
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "local_steps": 3, "batch_size": 8, "engine": "sequential"}
    return fk.train(model, clients(), method, progress=False, **(settings | changes))


def same(a: fk.Run, b: fk.Run) -> bool:
    pairs = [(a.params, b.params), *zip(a.server, b.server, strict=True)]
    for client, record in a.clients.items():
        if record is not None:
            pairs += zip(record, b.clients[client], strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("settings", FASTER, ids=str)
@pytest.mark.parametrize("method", ["scaffold", "moon", "fed-lamb"])
def test_processes_have_the_bits_of_sequential(method: str, settings: dict[str, Any]) -> None:
    one = train(method, **settings)
    assert same(one, train(method, engine="processes", workers=2, **settings))
    assert not torch.equal(one.params, train(method).params)


@pytest.mark.parametrize("method", fk.algorithms())
def test_every_method_has_the_numbers_of_contiguous_memory(method: str) -> None:
    """What a run returns is in the ordinary order, whatever the order inside: model, server record, client records."""
    cohort = CLIENTS if full_only(method) else COHORT
    settings = COMMON | SETTINGS["convolutional"] | {"cohort": cohort, "dtype": torch.float64}
    found = numbers(fk.train(convolutional, clients(), method, memory_format="channels_last", **settings))
    expected = CLOSE[f"{method} convolutional"]
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_flat_vector_holds_the_filters_channels_last() -> None:
    flat = FlatModel(images().to(memory_format=torch.channels_last))
    w = flat.vector()
    flat.bind(w)
    for p, view, layer in zip(flat.parameters, flat.bound_views, flat.layers.split(w), strict=True):
        assert torch.equal(p, view)
        assert torch.equal(p, layer)
        assert view.data_ptr() == p.data_ptr()
        if p.dim() == 4:
            assert p.stride()[1] == 1
            assert p.is_contiguous(memory_format=torch.channels_last)
    ordinary = torch.cat([p.detach().reshape(-1) for p in flat.parameters])
    assert torch.equal(flat.layers.in_order(w), ordinary)
    assert not torch.equal(w, ordinary)
    several = torch.stack([w, 2 * w])
    assert torch.equal(flat.layers.in_order(several), torch.stack([ordinary, 2 * ordinary]))
    assert [part.shape for part in flat.layers.split(several)] == [(2, *shape) for shape in flat.shapes]


def test_params_are_those_of_the_model_and_of_the_files(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = train(memory_format="channels_last", out=tmp_path)
    trained = [p for p in run.model.parameters() if p.requires_grad]
    assert torch.equal(run.params, torch.nn.utils.parameters_to_vector(trained).detach())
    assert torch.equal(run.params, run.server.x)
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(z, saved[name]) for name, z in run.model.state_dict().items())


def test_a_model_in_channels_last_stays_in_it_unless_you_say_otherwise() -> None:
    def model() -> nn.Module:
        return images().to(memory_format=torch.channels_last)

    assert same(train(model=model), train(memory_format="channels_last"))
    assert same(train(model=model, memory_format="contiguous"), train())


def test_only_frozen_convolutions() -> None:
    def model() -> nn.Module:
        made = images()
        made[:2].requires_grad_(False)
        return made

    run = train(model=model, memory_format="channels_last")
    torch.testing.assert_close(run.params, train(model=model).params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["scaffold", "moon"])
def test_vectorized_runs_channels_last(method: str) -> None:
    run = train(method, engine="vectorized", memory_format="channels_last")
    torch.testing.assert_close(run.params, train(method).params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", FASTER, ids=str)
def test_resume(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = train(rounds=4, **settings)
    train(rounds=2, out=tmp_path, **settings)
    with pytest.raises(ValueError, match=r"resume: (memory_format|precision) is .* now, but .* in the checkpoint"):
        train(rounds=4, out=tmp_path, resume=True)
    assert same(train(rounds=4, out=tmp_path, resume=True, **settings), whole)


def test_resume_in_another_format(tmp_path: Path) -> None:
    train(rounds=2, out=tmp_path)
    error = "resume: memory_format is 'channels_last' now, but 'contiguous' in the checkpoint"
    with pytest.raises(ValueError, match=error):
        train(rounds=4, out=tmp_path, resume=True, memory_format="channels_last")


def test_bf16_keeps_parameters_and_records_in_float32() -> None:
    inside = []

    class Spy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(super().forward(x).dtype)
            return super().forward(x)

    run = train(model=lambda: nn.Sequential(nn.Linear(64, 8), nn.ReLU(), Spy(8, 10)), precision="bf16", evaluate_every=0)
    assert {torch.bfloat16} <= set(inside) <= {torch.bfloat16, torch.float32}  # float32: the check before the run
    assert {z.dtype for z in (run.params, *run.server, *run.clients[0])} == {torch.float32}


def test_bf16_is_close_also_for_the_gradients_that_are_written_out_by_hand() -> None:
    exact, rounded = train(model=dense), train(model=dense, precision="bf16")
    moved = (exact.params - train(model=dense, rounds=1, local_steps=1).params).norm()
    assert 0 < (exact.params - rounded.params).norm() < 0.1 * moved


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"memory_format": "nhwc"}, r"memory_format = 'nhwc' is not allowed.*'contiguous' or 'channels_last'"),
        ({"precision": "fp8"}, r"precision = 'fp8' is not allowed.*'bf16'"),
        ({"memory_format": "channels_last", "model": dense}, r"'channels_last' is not allowed.*without 2-d convolutions"),
        ({"precision": "bf16", "engine": "vectorized"}, r"'vectorized' cannot run this model: with precision = 'bf16'"),
    ],
)
def test_wrong_values_are_refused_in_words(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        train(**settings)
