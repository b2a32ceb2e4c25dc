"""What a run leaves: its result in memory, and its directory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedkeel import __version__
from fedkeel.core.algorithm import Algorithm
from fedkeel.engine.checkpoint import NAME, StorageError, guarded, write_atomically
from fedkeel.engine.store import Store

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Clients(Mapping[int, Any]):
    """The records that clients keep; None for one that was never seen or keeps nothing."""

    def __init__(self, store: Store, N: int) -> None:
        self.store, self.N = store, N

    def __getitem__(self, client: int) -> Any:
        if not 0 <= client < self.N:
            raise KeyError(client)
        if client not in self.store:
            return None
        record = self.store.read(client)
        return type(record)(*(z.clone() for z in record))  # not the file itself, from which the run may be resumed

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.N))

    def __len__(self) -> int:
        return self.N


@dataclass
class Run:
    params: Tensor  # [d] final global model, in the order of model.parameters()
    model: nn.Module  # the module with these weights
    server: Any  # the server record
    clients: Clients
    history: list[dict[str, Any]]  # one row per round
    algorithm: Algorithm  # with the fields that depended on the run filled in
    engine: str  # who ran the clients
    why: str  # and why, if the engine was chosen automatically
    out: Path | None

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run."""
        scores = [row["test_accuracy"] for row in self.history if row.get("test_accuracy") is not None]
        return {
            "algorithm": self.algorithm.name,
            "rounds": len(self.history),
            "final_accuracy": scores[-1] if scores else None,
            "best_accuracy": max(scores, default=None),
            "final_train_loss": self.history[-1]["train_loss"],
            "up": sum(row["up"] + row.get("warmup_up", 0) for row in self.history),
            "down": sum(row["down"] + row.get("warmup_down", 0) for row in self.history),
            "seconds": sum(row["seconds"] for row in self.history),
            "dropped": sum(row["dropped"] + len(row.get("warmup_faults", ())) for row in self.history),
            "engine": self.engine,
            "engine_reason": self.why,
            "memory_mb": peak_memory(),
        }


def made_with() -> dict[str, str]:
    """Versions and machine of this process."""
    about = ""
    with contextlib.suppress(OSError):
        about = Path("/proc/cpuinfo").read_text()
    named = next((line.partition(":")[2].strip() for line in about.splitlines() if line.startswith("model name")), "")
    system = f"{platform.system()} {platform.machine()}, {named or platform.processor() or 'processor not named'}"
    packages = {"fedkeel": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {"python": platform.python_version(), **packages, "machine": system}


def peak_memory() -> float | None:
    """Most memory that this process held since it began, or since `forget_peak`, in MB, data included; worker processes of a
    run are not counted."""
    if fcntl is None:
        return None
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def forget_peak() -> None:
    """Lets `peak_memory` begin anew, where the system can: for a run in a process that had others before."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


class Busy(ValueError):
    """Another process is at work in the directory."""


def claim(path: Path, owner: object, otherwise: str) -> None:
    """Locks a file, which stands for its directory, for as long as the owner lives, or its process: two that write the same
    client memory would spoil it. otherwise: what to say if another has it."""
    if fcntl is None:
        return
    file = guarded(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    weakref.finalize(owner, os.close, file)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):  # the others: a file system that has no locks
            raise Busy(f"out: {otherwise} in {path.parent}") from None


class RunDirectory:
    """config.toml, metrics.jsonl, checkpoint, client memory, model and summary.json of one run."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.checkpoint = path / NAME
        self.store = path / "clients.bin"
        guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
        if not os.access(path, os.W_OK):
            raise StorageError(f"out: cannot write {path}: Permission denied")
        if self.checkpoint.exists() and not resume:
            raise ValueError(f"out: {path} already holds a run; pass resume=True to go on with it, or another directory")
        claim(path / "lock", self, "another process is training")
        if not self.checkpoint.exists():
            guarded(self.store, lambda: self.store.unlink(missing_ok=True))

    def begin(self, config: dict[str, Any], history: list[dict[str, Any]]) -> None:
        write_atomically(self.path / "config.toml", tomli_w.dumps(as_toml(config)).encode())
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history).encode())

    def add(self, row: dict[str, Any]) -> None:
        def write() -> None:
            with open(self.path / "metrics.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")

        guarded(self.path / "metrics.jsonl", write)

    def end(self, run: Run, data: str | None) -> None:
        """data: the fingerprint of the data and their split."""
        weights = {name: z.detach().cpu().clone() for name, z in run.model.state_dict().items()}
        write_atomically(self.path / "model.safetensors", save(weights))
        told = run.summary() | {"data": data, "made_with": made_with()}
        write_atomically(self.path / "summary.json", json.dumps(told, indent=2).encode())


def as_toml(value: Any) -> Any:
    """A config as TOML takes it: without None, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: as_toml(z) for key, z in value.items() if z is not None}
    if isinstance(value, (list, tuple)):
        return [as_toml(z) for z in value]
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
