"""Measurements of `auto`, kept in the cache folder, so that equal runs on the same machine choose the same engine.

The file may be deleted at any time. If it is damaged or cannot be written, `auto` measures again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedkeel.data.cache import folder
from fedkeel.engine.client_work import ClientWork, Exchange
from fedkeel.engine.machine import cores, made_with

FILE = "engines.json"
DAYS = 30  # after this time a measurement is repeated
MOST = 500  # measurements in the file; the oldest go first


class Measured(NamedTuple):
    """What was measured on one thread, in seconds."""

    round: float  # a round, one client after the other
    step: float | None  # a local step of all clients at once; None if the model cannot run like that


def key_of(work: ClientWork, exchange: Exchange) -> str:
    """A hash of the machine and of everything that the cost of a round depends on."""
    model, fed = work.objective.model, work.fed
    tensors = [z for z in (fed.x, fed.y) if isinstance(z, Tensor)]  # samples of data sets have unknown shapes
    samples = [(list(z.shape[1:]), str(z.dtype)) for z in tensors]
    shape = (repr(model.module), model.layers.sizes, str(model.dtype), str(model.device), samples)
    cost = (
        work.algo.name,
        work.batch_size,
        len(exchange.ids),
        max(exchange.K),
        sum(exchange.K),
        work.objective.each is None,
    )
    return hashlib.blake2b(repr((made_with(), cores(), shape, cost)).encode(), digest_size=8).hexdigest()


def recall(key: str) -> Measured | None:
    """What was measured before; None if nothing was, or too long ago."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        entry = _entries()[key]
        if 0 <= time.time() - float(entry["time"]) < DAYS * 86400:
            step = entry["step"]
            return Measured(float(entry["round"]), None if step is None else float(step))
    return None


def remember(key: str, measured: Measured) -> None:
    """Adds a measurement. If two processes write at the same time, one of them measures again next time."""
    entries = _entries() | {key: measured._asdict() | {"time": time.time()}}
    path = _path()
    part = path.with_name(f"{os.getpid()}-{path.name}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(dict(list(entries.items())[-MOST:])))
        os.replace(part, path)


def _path() -> Path:
    return folder() / FILE


def _entries() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        entries = json.loads(_path().read_text())
        if isinstance(entries, dict):
            return entries
    return {}
