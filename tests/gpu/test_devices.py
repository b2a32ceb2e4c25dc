"""Several devices of one machine (`devices=`), with the CPU in place of GPUs, and how Ray's workers share GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.core.device import named_devices
from fedkeel.core.torch_private import DROPOUTS
from fedkeel.engine.runners.devices import check_devices
from tests.tasks import digits_fed, full_only, same_record, small_net

FED = digits_fed(5, concentration=10.0)
BOTH = ["cpu", "cpu"]
SMALL = small_net(8)


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def train(name: str = "scaffold", model: Any = SMALL, fed: fk.Federation = FED, **kw: Any) -> fk.Run:
    settings = {"rounds": 2, "cohort": 5 if full_only(name) else 4, "local_steps": 2, "batch_size": 8, "evaluate_every": 0}
    return fk.train(model, fed, name, progress=False, **{**settings, **kw})


def same(a: fk.Run, b: fk.Run) -> None:
    assert torch.equal(a.params, b.params)
    assert same_record(a.server, b.server)
    assert all(same_record(a.clients[i], b.clients[i]) for i in range(len(a.clients)))
    assert all(torch.equal(x, y) for x, y in zip(a.model.buffers(), b.model.buffers(), strict=True))
    assert [row["train_loss"] for row in a.history] == [row["train_loss"] for row in b.history]


@pytest.mark.parametrize("name", fk.algorithms())
def test_two_devices_have_the_bits_of_sequential(name: str) -> None:
    same(train(name, engine="sequential"), train(name, devices=BOTH))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn"])
def test_normalisation_layers_too(name: str) -> None:
    one, two = (train(name, norm_net, evaluate_every=1, **kw) for kw in ({"engine": "sequential"}, {"devices": BOTH}))
    same(one, two)
    assert (two.engine, two.why) == ("devices", "cpu, cpu")


def test_more_clients_than_may_run_ahead() -> None:
    many = digits_fed(30, concentration=10.0)
    kw = {"fed": many, "cohort": 30, "weights": "samples"}
    same(train(engine="sequential", **kw), train(devices=["cpu"] * 3, **kw))


def test_a_loss_with_tensors_is_copied() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, 10))
    same(train(engine="sequential", loss=loss), train(devices=BOTH, loss=loss))


def test_a_client_that_fails_is_dropped() -> None:
    clients = [(FED[i].x.numpy().copy(), FED[i].y.numpy()) for i in range(5)]
    fed = fk.Federation.from_arrays(clients)
    fed.x[fed.offsets[2] : fed.offsets[3]] = torch.nan
    kw = {"fed": fed, "cohort": 5}
    one, two = train(engine="sequential", **kw), train(devices=BOTH, **kw)
    same(one, two)
    assert list(two.history[0]["faults"]) == ["2"]
    assert one.history[0]["faults"] == two.history[0]["faults"]


def test_a_run_goes_on_with_one_device(tmp_path: Any) -> None:
    train(devices=BOTH, out=tmp_path / "a", rounds=2)
    then = train(out=tmp_path / "a", rounds=3, resume=True)
    assert then.engine == "sequential"
    same(then, train(engine="sequential", rounds=3))


def test_the_random_state_of_the_user_stays() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(devices=BOTH)
    train(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.5)), engine="sequential")
    assert torch.equal(torch.get_rng_state(), before)


# What is refused ------------------------------------------------------------------------------------------------------


def test_one_generator_for_two_clients_is_refused() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))

    with pytest.raises(ValueError, match="not allowed for a model with dropout"):
        train(model=dropping, devices=BOTH)
    assert issubclass(nn.Dropout, DROPOUTS)
    check_devices(dropping(), [torch.device("cuda", 0), torch.device("cuda", 1)])
    with pytest.raises(ValueError, match="dropout"):
        check_devices(nn.LSTM(2, 2, num_layers=2, dropout=0.5), [torch.device("cuda", 0)] * 2)


def test_devices_of_several_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"devices = cpu, cuda:0 is not allowed: they must be of one kind"):
        check_devices(nn.Linear(2, 2), [torch.device("cpu"), torch.device("cuda", 0)])


@pytest.mark.parametrize(
    ("kw", "words"),
    [
        ({"devices": BOTH, "engine": "processes"}, r"devices = 'cpu,cpu' is not allowed with engine = 'processes'"),
        ({"devices": BOTH, "timeout": 5}, "with a timeout"),
        ({"devices": BOTH, "device": "cuda"}, "device = 'cuda' is not allowed beside devices"),
        ({"devices": 3}, "devices = 3 is not allowed"),
        ({"devices": ["cpu", ""]}, "devices = .* is not allowed"),
        ({"devices": "cpu,gpu7"}, "devices = 'cpu,gpu7' is not allowed"),
    ],
)
def test_settings_that_do_not_fit(kw: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(**kw)


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert named_devices(["all"]) == (torch.device("cuda", 0), torch.device("cuda", 1))
    assert named_devices(["cuda", "cuda:1"]) == (torch.device("cuda", 0), torch.device("cuda", 1))
    with pytest.raises(ValueError, match="torch finds 2 GPUs here, so there is no cuda:2"):
        named_devices(["cuda:0", "cuda:2"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="torch finds no GPU"):
        named_devices(["all"])


def test_the_command_line_takes_devices(fedkeel: Any) -> None:
    code, out, err = fedkeel(
        *(
            "run",
            "--data",
            "digits",
            "--rounds",
            "1",
            "--devices",
            "cpu,cpu",
            "--out",
            "x",
            "--clients",
            "5",
            "--cohort",
            "2",
        )
    )
    assert code == 0, err
    assert "devices" in out


# Ray ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "workers", "device", "expected"),
    [
        ({"CPU": 8.0}, None, "auto", (8, 0)),
        ({"CPU": 8.0, "GPU": 2.0}, None, "auto", (2, 1)),
        ({"CPU": 8.0, "GPU": 2.0}, None, "cuda", (2, 1)),
        ({"CPU": 8.0, "GPU": 2.0}, None, "cpu", (8, 0)),
        ({"CPU": 8.0, "GPU": 2.0}, 1, "cuda", (1, 1)),
        ({"CPU": 8.0, "GPU": 3.0}, 4, "cuda", (4, 1 / 2)),  # 3/4 of a GPU each would leave one of them without
        ({"CPU": 8.0, "GPU": 2.0}, 8, "cuda", (8, 1 / 4)),
    ],
)
def test_gpus_of_a_cluster(
    cluster: dict[str, float], workers: int | None, device: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pytest.importorskip("fedkeel.engine.runners.ray")
    monkeypatch.setattr(runner.ray, "cluster_resources", lambda: cluster)
    count, options = runner.resources(50, workers, device)
    assert (count, options["num_gpus"]) == expected


def test_a_gpu_that_the_cluster_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = pytest.importorskip("fedkeel.engine.runners.ray")
    monkeypatch.setattr(runner.ray, "cluster_resources", lambda: {"CPU": 4.0})
    with pytest.raises(ValueError, match="device = 'cuda' is not allowed with engine = 'ray' here: the cluster has no GPU"):
        runner.resources(50, None, "cuda")
