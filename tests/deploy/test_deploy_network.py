"""Deployed runs on a real SuperLink with TLS and authentication and four SuperNodes, all processes on loopback."""
# ruff: noqa: E402

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

from safetensors.torch import load_file
from torch import nn

import fedkeel as fk
from tests.deploy.flower_network import Network, wait_for

METHODS = ["fedavg", "scaffold", "fedlada", "fadamgt", "padamfed", "gradma"]
N = 4
SETTINGS = {"rounds": 5, "local_steps": 5, "batch_size": 20, "seed": 1}
PYPROJECT = """
[project]
name = "sites"
version = "1.0.0"
description = "four sites, each with its data"
license = {text = "none"}
dependencies = []

[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "sites:server"
clientapp = "sites:client"
[tool.flwr.app.config]
algorithm = "fedavg"
lr = 0.0
out = ""
rounds = 5
cohort = 4
timeout = 900.0
patience = 900.0
min_clients = 1
"""
# Every site reads its file. A site with `bad` in its node-config replies with garbage in the first rounds.
APP = """
import numpy as np
import torch
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import fedkeel as fk
from fedkeel.deploy.arrays import RAW, to_array
from fedkeel.deploy.client import MessageHandler
from fedkeel.deploy.server import serve

def model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

def load(path):
    with np.load(path) as file:
        return file["x"], file["y"]

def load_data(context):
    return load(context.node_config["data"])

def algorithm(context):
    return fk.algorithm(context.run_config["algorithm"], **({"lr": lr} if (lr := context.run_config["lr"]) else {}))

client = ClientApp()

@client.query("hello")
def hello(message: Message, context: Context) -> Message:
    return MessageHandler(model, load_data, algorithm(context)).hello(message, context)

@client.train()
def train(message: Message, context: Context) -> Message:
    reply = MessageHandler(model, load_data, algorithm(context)).train(message, context)
    if reply.has_error():
        return reply
    t = reply.content["fedkeel"]["round"]
    if context.node_config.get("bad") and context.run_config["min_clients"] == 2:
        dx = reply.content["up"]["dx"]
        z = torch.frombuffer(bytearray(dx.data), dtype=torch.float32)
        if t == 0:
            reply.content["up"]["dx"] = to_array(z[:-1])
        elif t == 1:
            z[3] = torch.nan
            reply.content["up"]["dx"] = to_array(z)
        elif t == 2:
            z[3] = 1e30
            reply.content["up"]["dx"] = to_array(z)
        elif t == 3:
            noise = np.random.default_rng(0).bytes(1234)
            reply.content["up"]["dx"] = Array(dtype="float32", shape=dx.shape, stype=RAW, data=noise)
    return reply

server = ServerApp()

@server.main()
def main(grid: Grid, context: Context) -> None:
    c = context.run_config
    settings = {"rounds": c["rounds"], "cohort": c["cohort"], "min_clients": c["min_clients"]}
    serve(grid, model, algorithm(context), clients=4, test=load(TEST), out=c["out"], timeout=c["timeout"],
          patience=c["patience"], local_steps=5, batch_size=20, seed=1, **settings)
"""


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def fed() -> fk.Federation:
    return fk.load("digits").split("dirichlet_per_class", clients=N, concentration=0.5, seed=0)


@pytest.fixture(scope="module")
def network(fed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    net = Network(folder)
    try:
        pairs = {f"client{i}": (fed[i].x, fed[i].y) for i in range(N)} | {"test": fed.test}
        for name, (x, y) in pairs.items():
            np.savez(folder / f"{name}.npz", x=x.numpy(), y=y.numpy())
        (folder / "app").mkdir()
        (folder / "app/pyproject.toml").write_text(PYPROJECT)
        (folder / "app/sites.py").write_text(f'TEST = "{folder / "test.npz"}"\n{APP}')
        for i in range(N):
            net.register(f"node{i}")
            net.node(f"node{i}", node_config(folder, i))
        yield net
    finally:
        net.stop()


def node_config(folder: Path, i: int) -> str:
    bad = " bad=true" if i == 1 else ""
    return f'partition-id={i} data="{folder / f"client{i}.npz"}" state="{folder / "memory"}"{bad}'


def rows(out: Path) -> list[dict]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def end_of(network: Network, run: int, out: Path, seconds: float) -> str:
    """Waits for the end of a run and returns its status."""
    seen: list[str] = []
    wait_for(
        lambda: seen.append(network.status(run)) or seen[-1].startswith("finished"),
        seconds,
        f"{out.name} has no end: {network.log('warm')[-3000:]}",
    )
    assert (seen[-1] == "finished:completed") == (out / "summary.json").exists()
    return seen[-1]


def test_a_node_that_is_not_authenticated_is_refused(network):
    network.node("stranger", node_config(network.folder, 0))  # a key that is not registered
    network.node("nobody", node_config(network.folder, 0), key=False)
    for name, why in [("stranger", "Failed to activate SuperNode"), ("nobody", "must be registered")]:
        assert network.processes.pop(name).wait(timeout=120) != 0
        assert why in network.log(name)
    assert len(json.loads(network.flwr("supernode", "list", "net", "--format", "json"))["nodes"]) == N


@pytest.mark.parametrize("name", METHODS)
def test_six_methods_have_the_bits_of_the_simulator(name, network, fed):
    out = network.folder / f"run-{name}"
    run = network.run(network.folder / "app", out=str(out), algorithm=name, min_clients=N)  # asks late clients again
    assert end_of(network, run, out, 900) == "finished:completed", network.log("warm")[-3000:]
    here = fk.train(model, fed, name, cohort=4, engine="sequential", progress=False, **SETTINGS)
    there = load_file(out / "model.safetensors")
    for key, z in here.model.state_dict().items():
        assert torch.equal(z, there[key]), key
    assert [row["test_accuracy"] for row in rows(out)] == [row["test_accuracy"] for row in here.history]
    assert all(row["dropped"] == 0 for row in rows(out))


def test_a_run_in_which_every_client_fails_ends_as_failed(network):
    """Flower reports it as failed too. Flower's strategies would report success, with an untrained model."""
    out = network.folder / "run-failed"
    run = network.run(network.folder / "app", algorithm="fedavg", lr=1e38, out=str(out), patience=30.0)
    assert end_of(network, run, out, 900) == "finished:failed"
    log = network.flwr("log", str(run), "net", "--show")
    assert all(re.search(f"client {i} is dropped: .*NotFinite", log) for i in range(N)), log
    assert "0 of 4 clients answered" in log


def test_garbage_a_kill_and_a_restart(network, fed):
    """Client 1 answers with a wrong shape, NaN, huge numbers and random bytes; node 3 is killed in round 2 and back in 4."""
    out, rounds = network.folder / "run-faults", 8
    settings = {"algorithm": "scaffold", "out": str(out), "rounds": rounds, "cohort": 4, "min_clients": 2, "timeout": 45.0}
    run = network.run(network.folder / "app", **settings)
    wait_for(lambda: len(rows(out)) >= 2, 600, "rounds 0 and 1 do not end")
    network.kill("node3")  # in round 2
    wait_for(lambda: len(rows(out)) >= 4, 600, "rounds 2 and 3 do not end without node 3")
    network.node("node3", node_config(network.folder, 3))  # in round 4
    assert end_of(network, run, out, 900) == "finished:completed"
    found = rows(out)
    for t, why in enumerate(["float32 [649], not float32 [650]", "not finite", "1e+30", "1234 bytes"]):
        assert why in found[t]["faults"]["1"], (t, found[t]["faults"])
    assert all("1" not in row["faults"] for row in found[4:])
    assert "3" in found[2]["faults"]
    assert "3" in found[3]["faults"]
    assert 3 in found[-1]["answered"], "node 3 has not come back"
    assert all(row["fresh"] == [] for row in found), "it came back with its record"
    assert "client 3 is dropped" in network.flwr("log", str(run), "net", "--show")
    here = fk.train(model, fed, "scaffold", cohort=4, engine="sequential", progress=False, **(SETTINGS | {"rounds": rounds}))
    assert abs(found[-1]["test_accuracy"] - here.history[-1]["test_accuracy"]) < 0.1
