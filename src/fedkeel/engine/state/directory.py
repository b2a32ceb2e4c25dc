"""The directory of a run: the names of its files, and how to read and write them."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedkeel.engine.machine import made_with
from fedkeel.engine.result import Run
from fedkeel.engine.state import store
from fedkeel.errors import StorageError
from fedkeel.files import as_toml, claim, guarded, write_atomically

CONFIG = "config.toml"  # all settings
HISTORY = "metrics.jsonl"  # one row per round
CHECKPOINT = "checkpoint.safetensors"
CLIENTS = store.FILE  # client memory
MODEL = "model.safetensors"  # the final weights
SUMMARY = "summary.json"  # written last: it makes a run complete
ERROR = "error.txt"  # why a run of a study has failed
STATE = (CHECKPOINT, CLIENTS)  # what a run resumes from
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


def mark_failed(path: Path, error: str | None) -> None:
    """Writes down why a run has failed, for reports. error=None deletes that: the run starts again."""
    if error is None:
        guarded(path / ERROR, lambda: (path / ERROR).unlink(missing_ok=True))
        return
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
        self.store = path / CLIENTS
        guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
        if not os.access(path, os.W_OK):
            raise StorageError(f"out: cannot write {path}: Permission denied")
        if self.checkpoint.exists() and not resume:
            raise ValueError(f"out: {path} already holds a run; pass resume=True to go on with it, or another directory")
        claim(path / "lock", self, "another process is training")
        if not self.checkpoint.exists():
            guarded(self.store, lambda: self.store.unlink(missing_ok=True))

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
