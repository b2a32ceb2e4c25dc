"""The directory of a run: the names of its files, and how to read and write them.

A checkpoint is the state of a run in one safetensors file, which is replaced atomically. Client memory lies in another file
beside it (store.py). A checkpoint also holds the run's identity: settings, method, model and data. A run that resumes must
have the same one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import form
from fedkeel.engine.machine import made_with
from fedkeel.engine.result import Run
from fedkeel.engine.settings import Settings, alike
from fedkeel.engine.state import store
from fedkeel.errors import StorageError
from fedkeel.files import as_toml, claim, guarded, write_atomically

CONFIG = "config.toml"  # all settings
HISTORY = "metrics.jsonl"  # one row per round
CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_FORMAT = "fedkeel-checkpoint-1"
# Settings that checkpoints of version 0.1.0 lack, and what such a run had in their place.
ADDED = {"memory_format": "contiguous", "precision": None, "participation": None}
ADDED |= {"privacy": None, "uplink": None, "aggregation": "mean", "attack": None}
CLIENTS = store.FILE  # client memory
RESIDUALS = "residuals.bin"  # what clients could not send through a compressed uplink
MODEL = "model.safetensors"  # the final weights
SUMMARY = "summary.json"  # written last: it makes a run complete
ERROR = "error.txt"  # why a run of a study has failed
STATE = (CHECKPOINT, CLIENTS, RESIDUALS)  # what a run resumes from
RESULTS = (CONFIG, HISTORY, MODEL, SUMMARY)
HEAVY = (*STATE, MODEL)  # large files that the tables and figures of a study do not need
FILES = (*STATE, *RESULTS, ERROR)
# Settings that say how to carry a run out, not what it computes. They may change when the run resumes.
HOW = ("data_dir", "engine", "workers", "timeout", "ray_address", "min_clients")


def holds_run(path: Path) -> bool:
    """Would a new run in this directory destroy something?"""
    return any((path / name).exists() for name in (CHECKPOINT, SUMMARY))


def summary(path: Path, rounds: int) -> dict[str, Any] | None:
    """The summary of a run with this number of rounds; None if the run in the directory is not complete."""
    try:
        found = json.loads((path / SUMMARY).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("rounds") == rounds else None


def forget_failure(path: Path) -> None:
    """Deletes what `mark_failed` wrote: the run starts again."""
    guarded(path / ERROR, lambda: (path / ERROR).unlink(missing_ok=True))


def mark_failed(path: Path, error: str) -> None:
    """Writes down why a run has failed, for reports."""
    guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
    write_atomically(path / ERROR, error.encode())


def why_failed(path: Path) -> str | None:
    """Why the run in a directory has failed; None if it did not fail."""
    try:
        return (path / ERROR).read_text()
    except OSError:
        return None


def history(path: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """The history of a run, one row per round. rounds: the number of rows that it must have."""
    try:
        rows = [json.loads(line) for line in (path / HISTORY).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"out: {path / HISTORY} cannot be read: {error}") from None
    if rounds is not None and len(rows) != rounds:
        raise ValueError(f"out: {path / HISTORY} has {len(rows)} rounds, not {rounds}; delete {path} to run it again")
    return rows


def next_round(path: Path) -> int | None:
    """The round that follows the checkpoint in a directory; None if there is no checkpoint that can be read."""
    try:
        with safe_open(path / CHECKPOINT, framework="np") as file:
            return int(file.metadata()["round"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def clear(path: Path) -> None:
    """Deletes the files of the run in a directory. Other files stay."""
    claimed = RunDirectory(path, resume=True)  # raises if another process is training there
    for file in (path / name for name in FILES):
        guarded(file, partial(file.unlink, missing_ok=True))
    del claimed


class RunDirectory:
    """Writes the files of one run. Holds a lock, so that no other process trains in the same directory."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT
        self.store, self.residuals = path / CLIENTS, path / RESIDUALS
        guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
        if not os.access(path, os.W_OK):
            raise StorageError(f"out: cannot write {path}: Permission denied")
        if self.checkpoint.exists() and not resume:
            raise ValueError(f"out: {path} already holds a run; pass resume=True to go on with it, or another directory")
        claim(path / "lock", self, "another process is training")
        if not self.checkpoint.exists():
            for file in (self.store, self.residuals):
                guarded(file, partial(file.unlink, missing_ok=True))

    def begin(self, config: dict[str, Any], history: list[dict[str, Any]]) -> None:
        """Writes the config, and the history up to the checkpoint: later rows will be computed again."""
        write_atomically(self.path / CONFIG, tomli_w.dumps(as_toml(config)).encode())
        write_atomically(self.path / HISTORY, "".join(json.dumps(row) + "\n" for row in history).encode())

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row to the history."""

        def write() -> None:
            with open(self.path / HISTORY, "a") as file:
                file.write(json.dumps(row) + "\n")

        guarded(self.path / HISTORY, write)

    def end(self, run: Run, data: str | None) -> None:
        """Writes model and summary. data: the fingerprint of the data and their split."""
        weights = {name: z.detach().cpu().contiguous().clone() for name, z in run.model.state_dict().items()}
        write_atomically(self.path / MODEL, save(weights))
        about = run.summary() | {"data": data, "made_with": made_with()}
        write_atomically(self.path / SUMMARY, json.dumps(about, indent=2).encode())


# Checkpoints ---------------------------------------------------------------------------------------------------------


def save_checkpoint(path: Path, t: int, server: Any, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """t: the next round.  tensors: the model's buffers and the index of the store.  facts: all else, kept as JSON."""
    named = {f"server.{name}": z for name, z in server._asdict().items()} | tensors
    # safetensors refuses tensors that share memory, and an initial record may hold the same zeros twice.
    named = {name: z.detach().to("cpu", copy=True).contiguous() for name, z in named.items()}
    metadata = {"format": CHECKPOINT_FORMAT, "round": str(t), "facts": json.dumps(facts, default=_number)}
    write_atomically(path, save(named, metadata))


def _number(value: Any) -> Any:
    """numpy's numbers as Python's: settings may hold them, and JSON does not know them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be part of a checkpoint")


def load_checkpoint(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """(next round, tensors, facts) of a checkpoint file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != CHECKPOINT_FORMAT:
                raise ValueError(f"checkpoint: {path} was not written by this version of fedkeel")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"checkpoint: {path} is damaged or not a checkpoint ({' '.join(str(error).split())})") from error
    return int(metadata["round"]), tensors, json.loads(metadata["facts"])


def server_from(tensors: dict[str, Tensor], template: Any, device: torch.device) -> Any:
    """The server record in a checkpoint. Its form must be that of the template."""
    values = []
    for name, z in template._asdict().items():
        saved = tensors.get(f"server.{name}")
        if saved is None or saved.shape != z.shape or saved.dtype != z.dtype:
            raise ValueError(f"checkpoint: its server record does not fit this run (field {name})")
        values.append(saved.to(device, copy=True))  # in memory that torch aligns: BLAS may round differently elsewhere
    return type(template)(*values)


def run_identity(
    settings: Settings,
    algo: Algorithm,
    model: FlatModel,
    initial: Any,
    t: int,
    data: str | None,
    frozen: str | None,
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """What must not change between a checkpoint and the run that resumes from it.

    initial: the record of a new client.  t: the next round.  data, frozen: fingerprints of data and frozen parameters.
    conditions: who takes part, and the like.
    """
    how = {"dtype": str(model.dtype), "memory_format": model.memory_format, "precision": settings.precision}
    kept = settings.identity() | how | dict(conditions)
    if isinstance(kept["cohort"], Sequence):  # a list of clients per round: later rounds may still change
        past = [list(ids) for ids in kept["cohort"]][:t]
        kept["cohort"] = hashlib.sha256(repr(past).encode()).hexdigest()
    shapes = [[name, list(shape)] for name, shape in zip(model.names, model.shapes, strict=True)]
    method = {"name": algo.name, **dataclasses.asdict(algo)}  # type: ignore[call-overload]
    identity = {"settings": kept, "algorithm": method, "model": shapes, "data": data, "client records": form(initial)}
    return identity | ({"frozen parameters": frozen} if frozen else {})


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], theory: Collection[str] = ()) -> None:
    """Raises if two identities differ.

    theory: hyper-parameters that the user did not give, because they follow from the size of the run.
    """
    for part, ours in now.items():
        theirs = then.get(part)
        if part == "settings" and isinstance(theirs, dict):
            theirs = {key: value for key, value in ADDED.items() if key in ours} | theirs
        if part in ("settings", "algorithm") and isinstance(theirs, dict):
            key = next((key for key in ours if not alike(key, theirs.get(key), ours[key])), None)
            if key is not None:
                why = ", by the method's theory: rounds, clients, cohort or local steps are others" if key in theory else ""
                raise ValueError(f"resume: {key} is {ours[key]!r} now, but {theirs.get(key)!r} in the checkpoint{why}")
        if theirs != ours:
            raise ValueError(f"resume: the {part} differ from those of the checkpoint")
