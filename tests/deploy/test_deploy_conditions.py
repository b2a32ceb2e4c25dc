"""Conditions in a deployment: packed bytes really travel, noise is secret, and all else has the simulator's bits."""
# ruff: noqa: E402

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flwr's own dependencies

from torch import nn

import fedkeel as fk
from fedkeel.channel import channel as channels
from fedkeel.channel import validity
from fedkeel.deploy import client_channel
from tests.deploy import test_deploy
from tests.deploy.test_deploy import N, deploy, fed, impatient, make_grid, simulate, tuned  # noqa: F401

SEED = test_deploy.SETTINGS["seed"]
UPLINKS = ["topk:0.1+quantize:4", "randk:0.2+sign", "lowrank:2", "quantize:8"]


@pytest.fixture(autouse=True)
def plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without normalisation statistics, which privacy refuses."""
    monkeypatch.setattr(
        test_deploy, "model", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    )


def both(fed: Any, name: str, folder: Path, **conditions: Any) -> tuple[fk.Run, fk.Run, Any]:  # noqa: F811
    algo = tuned(name)
    grid = make_grid(fed, name, folder)
    return simulate(fed, algo, **conditions), deploy(grid, fed, algo, **conditions), grid


def check_same(here: fk.Run, there: fk.Run) -> None:
    assert torch.equal(here.params, there.params)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(here.server, there.server, strict=True))
    for ours, theirs in zip(here.history, there.history, strict=True):
        assert (ours["up_bytes"], ours["down_bytes"]) == (theirs["up_bytes"], theirs["down_bytes"])
        assert ours.get("epsilon") == theirs.get("epsilon")


def check_packed(name: str, fed: Any, folder: Path, uplink: str) -> None:  # noqa: F811
    here, there, _ = both(fed, name, folder, uplink=uplink, downlink="quantize:6")
    check_same(here, there)
    for row in there.history:  # counted bytes are those that travelled
        warm = row["round"] == 0
        assert row["bytes_up"] == pytest.approx(row["up_bytes"] * row["clients"]) or warm
        sent_twice = fk.algorithm(name).surveys(row["round"])
        assert row["bytes_down"] == row["down_bytes"] * row["clients"] * (1 + sent_twice) or warm


@pytest.mark.parametrize("uplink", UPLINKS)
def test_packed_uploads_have_the_bits_of_the_simulator(uplink, fed, tmp_path):  # noqa: F811
    check_packed("scaffold", fed, tmp_path, uplink)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in fk.algorithms() if validity.why_not_uplink(fk.algorithm(name)) is None])
def test_every_method_sends_packed_uploads(name, fed, tmp_path):  # noqa: F811
    check_packed(name, fed, tmp_path, UPLINKS[0])


@pytest.mark.parametrize("name", ["fedavg", "mime"])
def test_methods_without_records_keep_what_they_could_not_send(name, fed, tmp_path):  # noqa: F811
    check_packed(name, fed, tmp_path, "topk:0.05")


def test_what_was_not_sent_survives_a_restart_of_server_and_sites(fed, tmp_path):  # noqa: F811
    settings = {"uplink": UPLINKS[0], "out": tmp_path / "run"}
    deploy(make_grid(fed, "fedavg", tmp_path / "sites"), fed, "fedavg", **settings, rounds=2)
    resumed = deploy(make_grid(fed, "fedavg", tmp_path / "sites"), fed, "fedavg", **settings)
    assert torch.equal(simulate(fed, "fedavg", uplink=UPLINKS[0]).params, resumed.params)
    assert not any(row["fresh"] for row in resumed.history)


@pytest.mark.parametrize("spoil", ["short", "raw"])
def test_a_packed_upload_of_the_wrong_form_is_dropped(spoil, fed, tmp_path):  # noqa: F811
    from fedkeel.deploy.arrays import packed_array, to_array

    grid = make_grid(fed, "fedavg", tmp_path)

    def change(node: int, reply: Any) -> Any:
        if node == 100 and "up" in reply.content:
            d = 64 * 8 + 8 + 80 + 10
            reply.content["up"]["dx"] = packed_array(b"1234") if spoil == "short" else to_array(torch.zeros(d))
        return reply

    grid.spoil = change
    run = deploy(grid, fed, "fedavg", uplink="quantize:16", cohort=N)
    assert all(set(row["faults"]) == {"0"} for row in run.history)


@pytest.mark.parametrize(
    "conditions",
    [
        {"privacy": "gaussian:clip=0.5,noise=0.8"},
        {"privacy": "gaussian:clip=0.5,noise=0.2,quantile=0.5"},
        {"privacy": "gaussian:clip=0.5,noise=0.8", "uplink": "topk:0.2"},
        {"privacy": "gaussian:clip=0.5,noise=0.2,where=client"},
        {"aggregation": "median"},
        {"aggregation": "krum:0.2", "uplink": "quantize:8"},
    ],
    ids=str,
)
def test_noise_and_robust_means_have_the_bits_of_the_simulator(conditions, fed, tmp_path, monkeypatch):  # noqa: F811
    """If the noise of the deployment came from the seed of the run, as in a simulation."""
    monkeypatch.setattr(channels.secrets, "randbits", lambda bits: SEED)
    check_same(*both(fed, "scaffold", tmp_path, **conditions)[:2])


@pytest.mark.parametrize("where", ["server", "client"])
def test_the_noise_does_not_follow_from_the_seed_of_the_run(where, fed, tmp_path):  # noqa: F811
    privacy = f"gaussian:clip=0.5,noise=0.8,where={where}"
    here, there, _ = both(fed, "fedavg", tmp_path, privacy=privacy)
    again = deploy(make_grid(fed, "fedavg", tmp_path / "other"), fed, "fedavg", privacy=privacy)
    assert not torch.equal(here.params, there.params)
    assert not torch.equal(again.params, there.params)
    assert there.history[-1]["epsilon"] == here.history[-1]["epsilon"]
    if where == "client":
        assert all(row["train_loss"] != row["train_loss"] for row in there.history), "a private client sends no loss"


def test_a_server_with_noise_resumes_with_its_secret_seed(fed, tmp_path):  # noqa: F811
    settings = {"privacy": "gaussian:clip=0.5,noise=0.8", "out": tmp_path / "run"}
    short = deploy(make_grid(fed, "fedavg", tmp_path / "sites"), fed, "fedavg", **settings, rounds=2)
    seeds = []
    plain = channels.private.normal

    def seen(like: Any, deviation: float, seed: int, *purpose: object) -> Any:
        seeds.append(seed)
        return plain(like, deviation, seed, *purpose)

    channels.private.normal, before = seen, channels.private.normal
    try:
        resumed = deploy(make_grid(fed, "fedavg", tmp_path / "sites"), fed, "fedavg", **settings)
    finally:
        channels.private.normal = before
    assert len(set(seeds)) == 1
    assert set(seeds) != {SEED}
    assert [row["epsilon"] for row in resumed.history[:2]] == [row["epsilon"] for row in short.history]
    assert client_channel.noise_seed() != client_channel.noise_seed()


def test_late_sites_are_left_out_at_the_deadline(fed, tmp_path):  # noqa: F811
    grid = make_grid(fed, "fedavg", tmp_path)
    grid.spoil = lambda node, reply: None if node == 101 and "up" in reply.content else reply  # its answer never comes
    began = time.monotonic()
    run = deploy(grid, fed, "fedavg", cohort=N, deadline=0.05, timeout=600, rounds=2)
    assert time.monotonic() - began < 60
    assert all(set(row["faults"]) == {"1"} for row in run.history)


def test_conditions_of_simulations_are_refused(fed, tmp_path):  # noqa: F811
    grid = make_grid(fed, "fedavg", tmp_path)
    for wrong in ({"attack": "sign-flip:0.2"}, {"clock": "phones"}, {"buffer": 2}, {"overselect": 1.5}):
        with pytest.raises(ValueError, match="|".join(wrong)):
            deploy(grid, fed, "fedavg", **wrong)
