"""Any registered method as a Flower app: `client_app` for the SuperNodes, `server_app` for the SuperLink.

client = client_app(model, load_data, "scaffold")
server = server_app(model, "scaffold", clients=4, rounds=100, test=load_test, out="run")
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

try:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise ValueError("fedkeel.deploy needs the package flwr: pip install 'fedkeel[flower]'") from None

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.registry import make
from fedkeel.data.federation import Federation
from fedkeel.deploy.client import Node
from fedkeel.deploy.privacy import protected
from fedkeel.deploy.project import TIMEOUT
from fedkeel.deploy.remote import Flower
from fedkeel.deploy.roster import Roster
from fedkeel.engine.result import Run
from fedkeel.engine.state.directory import CHECKPOINT
from fedkeel.engine.train import train
from fedkeel.errors import refuse
from fedkeel.files import write_atomically

LARGEST = 1e8
Pair = tuple[Any, Any]
Model = nn.Module | Callable[[], nn.Module]


def client_app(
    model: Model,
    load_data: Callable[[Context], Pair | Federation],
    algorithm: str | Algorithm,
    *,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    device: str = "auto",
    mods: Sequence[Any] = (),
) -> ClientApp:
    """What a SuperNode runs. Which client it is says its node-config: `partition-id=0` to N - 1.

    model: the function that makes the model, the same as the server's.
    load_data: load_data(context) -> the (x, y) of this client; `context.node_config` is what the SuperNode was started with.
    algorithm: a name or fedkeel.algorithm(...); hyper-parameters are the server's.
    mods: Flower's modifiers, such as LocalDpMod; refused where the method does not allow them (docs/deploy.md).
    """
    algo = make(algorithm) if isinstance(algorithm, str) else algorithm
    wrapped, protects = protected(algo, mods)
    node = Node(model, load_data, algo, loss, device, tells_loss=not protects)
    app = ClientApp()
    app.query("hello")(node.hello)
    app.train(mods=wrapped)(node.train)
    return app


def server_app(
    model: Model,
    algorithm: str | Algorithm,
    *,
    clients: int,
    test: Pair | Federation | Callable[[], Pair | Federation] | None = None,
    out: str | Path | None = None,
    timeout: float = TIMEOUT,
    patience: float = TIMEOUT,
    largest: float = LARGEST,
    **settings: Any,
) -> ServerApp:
    """What the SuperLink runs: the round loop of `fedkeel.train`, with the clients of a round reached by Flower.

    clients: N; the run begins when all of them are connected.
    test: data for the server's own evaluation, or a function that loads them.
    out: the directory of the run; started again, it goes on from the checkpoint there.
    timeout: seconds that the clients of a round have to answer.
    patience: seconds to wait for missing clients: for all before the first round, for `min_clients` in a round.
    largest: an upload with a larger number than this is refused.
    settings: those of `fedkeel.train`: rounds, cohort, local_steps, batch_size, weights, seed, min_clients ...
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, model, algorithm, clients, test, out, timeout, patience, largest, **settings)

    return app


def serve(
    grid: Grid,
    model: Model,
    algorithm: str | Algorithm,
    clients: int,
    test: Any,
    out: str | Path | None,
    timeout: float,
    patience: float,
    largest: float,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    **settings: Any,
) -> Run:
    """One deployed run, from the first hello to the last round."""
    for name, value in (("timeout", timeout), ("patience", patience), ("largest", largest)):
        if not value > 0:
            raise refuse(name, value, "> 0")
    if settings.get("metrics"):
        raise ValueError(
            f"metrics = {settings['metrics']!r} is not allowed: they need the clients' data, which stay with them"
        )
    roster = Roster(grid, clients, say)
    run = _known(out, clients, roster) or _introduce(out, roster, patience)
    min_clients = settings.get("min_clients", 1)
    remote = Flower(grid, roster, run, timeout, patience, min_clients, largest, say)
    rounds = settings["rounds"]
    result = train(
        model,
        _federation(roster, test),
        algorithm,
        out=out,
        resume=bool(out),
        progress=lambda row: say(line(row, rounds)),
        remote=remote,
        **settings,
    )
    say(f"finished: {json.dumps(result.summary())}")
    return result


def _known(out: str | Path | None, clients: int, roster: Roster) -> str | None:
    """The name of the run that `out` holds, with the clients' sizes as they were told then; None if it holds none."""
    if out is None or not (Path(out) / CHECKPOINT).exists():
        return None
    try:
        known = json.loads((Path(out) / "deployment.json").read_text())
        name, sizes = str(known["run"]), [int(n) for n in known["samples"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"out: {out} holds a run that was not deployed; choose another directory") from None
    if len(sizes) != clients:
        raise ValueError(f"out: {out} holds a run with {len(sizes)} clients, this one has {clients}")
    roster.samples = dict(enumerate(sizes))
    return name


def _introduce(out: str | Path | None, roster: Roster, patience: float) -> str:
    """Waits for all clients; the name of a new run."""
    roster.say(f"waiting for {roster.N} clients")
    roster.wait(patience)
    name = uuid.uuid4().hex
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        known = {"run": name, "samples": [roster.samples[i] for i in range(roster.N)]}
        write_atomically(Path(out) / "deployment.json", json.dumps(known).encode())
    return name


def _federation(roster: Roster, test: Any) -> Federation:
    """What the server knows of the data: how many samples each client has, and what it may test with."""
    test = test() if callable(test) else test
    sizes = [roster.samples[client] for client in range(roster.N)]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    nothing = torch.zeros(0)
    if isinstance(test, Federation):
        return dataclasses.replace(test, x=nothing, y=nothing, offsets=offsets, order=None)
    pair = None if test is None else tuple(torch.as_tensor(z) for z in test)
    return Federation(nothing, nothing, offsets, None, pair)  # type: ignore[arg-type]


def line(row: dict[str, Any], rounds: int) -> str:
    """A round in a line of the log."""
    parts = [f"round {row['round'] + 1}/{rounds}", f"loss {row['train_loss']:.4g}"]
    if row.get("test_accuracy") is not None:
        parts.append(f"accuracy {row['test_accuracy']:.4f}")
    parts.append(f"answered {' '.join(map(str, row['answered']))}" if "answered" in row else f"{row['clients']} clients")
    if row["dropped"]:
        parts.append(f"dropped {' '.join(row['faults'])}")
    if "bytes_up" in row:
        parts.append(f"up {row['bytes_up'] / 1e6:.2f} MB, down {row['bytes_down'] / 1e6:.2f} MB")
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])
