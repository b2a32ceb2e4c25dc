"""A deployed run on the server, from the first connection to the last round."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.serverapp import Grid

from fedkeel.core.algorithm import Algorithm
from fedkeel.data.federation import Federation
from fedkeel.deploy.audit import AuditLog
from fedkeel.deploy.keys import private_key
from fedkeel.deploy.keys import site_keys as keys_of_sites
from fedkeel.deploy.limits import LARGEST, MOST_SAMPLES, TIMEOUT, Limits
from fedkeel.deploy.nodes import ClientNodes
from fedkeel.deploy.signature import write_signature
from fedkeel.deploy.supernode_runner import SuperNodes
from fedkeel.engine.result import Run
from fedkeel.engine.state.directory import MODEL, holds_checkpoint
from fedkeel.engine.train import train
from fedkeel.errors import refuse
from fedkeel.files import guarded, sealed, unsealed, write_atomically

DEPLOYMENT = "deployment.json"  # in a run's directory: its name, and every client's number of samples


def print_line(line: str) -> None:
    print(line, flush=True)


def serve(
    grid: Grid,
    model: Any,
    algorithm: str | Algorithm,
    *,
    clients: int,
    test: Any = None,
    out: str | Path | None = None,
    timeout: float = TIMEOUT,
    patience: float = TIMEOUT,
    largest: float = LARGEST,
    most_samples: int = MOST_SAMPLES,
    norm_bound: float | None = None,
    site_keys: str | Path | None = None,
    sign_with: str | Path | None = None,
    log: Callable[[str], None] = print_line,
    **settings: Any,
) -> Run:
    """Trains on the clients that are connected to the grid. `server_app` explains the arguments."""
    limits = Limits(largest, most_samples, norm_bound)
    for name, value in (("timeout", timeout), ("patience", patience)):
        if not value > 0:
            raise refuse(name, value, "> 0")
    if settings.get("metrics"):
        raise ValueError(
            f"metrics = {settings['metrics']!r} is not allowed in a deployed run: "
            "they need the clients' data, and the server does not have them"
        )
    if sign_with is not None:
        private_key(sign_with)  # raises if it cannot be used
        if out is None:
            raise ValueError("sign_with is not allowed without out: there would be nothing to sign")
    audit = None
    if out is not None:
        guarded(Path(out), lambda: Path(out).mkdir(parents=True, exist_ok=True))
        audit = AuditLog(Path(out))
        audit.add("start", clients=clients, limits=dataclasses.asdict(limits), keys=site_keys is not None)
    keys = None if site_keys is None else keys_of_sites(site_keys, clients)
    nodes = ClientNodes(grid, clients, log, limits, keys, audit)
    run_name = _resumed_run(out, nodes) or _new_run(out, nodes, patience)
    min_clients = settings.get("min_clients", 1)
    validation = settings.get("validation", 0.0)
    timeout = min(timeout, settings.get("deadline") or timeout)
    supernodes = SuperNodes(grid, nodes, run_name, timeout, patience, min_clients, limits, validation, log, audit)
    rounds = settings["rounds"]
    result = train(
        model,
        _server_federation(nodes, test),
        algorithm,
        out=out,
        resume=bool(out),
        progress=lambda row: log(round_line(row, rounds)),
        remote=supernodes,
        **settings,
    )
    if audit is not None:
        audit.add("end", run=run_name, digest=hashlib.sha256((Path(str(out)) / MODEL).read_bytes()).hexdigest())
    if sign_with is not None:
        write_signature(Path(str(out)), sign_with)
    log(f"finished: {json.dumps(result.summary())}")
    return result


def _resumed_run(out: str | Path | None, nodes: ClientNodes) -> str | None:
    """The name of the run in `out`, or None if there is none. Restores the clients' numbers of samples."""
    if out is None or not holds_checkpoint(Path(out)):
        return None
    try:
        deployment = unsealed((Path(out) / DEPLOYMENT).read_bytes())
        name, samples = str(deployment["run"]), [int(n) for n in deployment["samples"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"out: {out} holds a run that was not deployed; choose another directory") from None
    if len(samples) != nodes.N:
        raise ValueError(f"out: {out} holds a run with {len(samples)} clients, this one has {nodes.N}")
    nodes.samples = dict(enumerate(samples))
    return name


def _new_run(out: str | Path | None, nodes: ClientNodes, patience: float) -> str:
    """Waits for all clients and gives the run a name."""
    nodes.log(f"waiting for {nodes.N} clients")
    nodes.wait_for_all(patience)
    name = uuid.uuid4().hex
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        deployment = {"run": name, "samples": [nodes.samples[i] for i in range(nodes.N)]}
        write_atomically(Path(out) / DEPLOYMENT, sealed(deployment).encode())
    return name


def _server_federation(nodes: ClientNodes, test: Any) -> Federation:
    """What the server knows about the data: how many samples each client has, and its test data."""
    test = test() if callable(test) else test
    offsets = np.concatenate([[0], np.cumsum(nodes.sizes)]).astype(np.int64)
    nothing = torch.zeros(0)
    if isinstance(test, Federation):
        return dataclasses.replace(test, x=nothing, y=nothing, offsets=offsets, order=None)
    if test is None:
        return Federation(nothing, nothing, offsets)
    x, y = (torch.as_tensor(z) for z in test)
    return Federation(nothing, nothing, offsets, test=(x, y))


def round_line(row: dict[str, Any], rounds: int) -> str:
    """A round as one line of the log."""
    parts = [f"round {row['round'] + 1}/{rounds}", f"loss {row['train_loss']:.4g}"]
    if row.get("test_accuracy") is not None:
        parts.append(f"accuracy {row['test_accuracy']:.4f}")
    if "val_clients" in row:
        parts.append(f"validation loss {row['val_loss']:.4g} at {row['val_clients']} clients")
    parts.append(f"answered {' '.join(map(str, row['answered']))}" if "answered" in row else f"{row['clients']} clients")
    if row["dropped"]:
        parts.append(f"dropped {' '.join(row['faults'])}")
    if "bytes_up" in row:
        parts.append(f"up {row['bytes_up'] / 1e6:.2f} MB, down {row['bytes_down'] / 1e6:.2f} MB")
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])
