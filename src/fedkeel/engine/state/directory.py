"""What the directory of a run holds, read back: is it complete, is it the same run, what did it find."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tomli_w
from safetensors.torch import save

from fedkeel.engine.machine import made_with
from fedkeel.engine.result import Run
from fedkeel.errors import StorageError
from fedkeel.files import as_toml, claim, guarded, write_atomically

CHECKPOINT = "checkpoint.safetensors"
ERROR = "error.txt"  # why a run of a study has failed
STATE = (CHECKPOINT, "clients.bin")  # from which a run goes on
RESULTS = ("config.toml", "metrics.jsonl", "model.safetensors", "summary.json")  # the last one makes a run complete
HEAVY = (*STATE, "model.safetensors")  # what the numbers of a run do not need
FILES = (*STATE, *RESULTS, ERROR)
# Keys that say how a run is carried out, not what it computes: they may differ when it is continued.
HOW = ("data_dir", "engine", "workers", "timeout", "ray_address", "min_clients")


def holds_run(path: Path) -> bool:
    """Is there anything that a new run in this directory would destroy?"""
    return any((path / name).exists() for name in (CHECKPOINT, "summary.json"))


def summary(path: Path, rounds: int) -> dict[str, Any] | None:
    """The summary of a run of so many rounds, None if the one in the directory is not complete."""
    try:
        found = json.loads((path / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("rounds") == rounds else None


def mark_failed(path: Path, error: str | None) -> None:
    """Keeps why a run has failed, for reports; None: it is being run again."""
    from fedkeel.files import guarded, write_atomically

    if error is None:
        guarded(path / ERROR, lambda: (path / ERROR).unlink(missing_ok=True))
        return
    guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
    write_atomically(path / ERROR, error.encode())


def why_failed(path: Path) -> str | None:
    """Why the run in a directory has failed; None if it has not."""
    try:
        return (path / ERROR).read_text()
    except OSError:
        return None


def history(path: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """One row per round of a run; rounds: as many as it must have."""
    try:
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"out: {path / 'metrics.jsonl'} cannot be read: {error}") from None
    if rounds is not None and len(rows) != rounds:
        raise ValueError(
            f"out: {path / 'metrics.jsonl'} has {len(rows)} rounds, not {rounds}; delete {path} to run it again"
        )
    return rows


def next_round(path: Path) -> int | None:
    """The round at which the checkpoint in a directory goes on; None if there is none, or it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path / CHECKPOINT, framework="np") as file:
            return int(file.metadata()["round"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def clear(path: Path) -> None:
    """Removes the run in a directory, and nothing else that may lie there."""
    from fedkeel.engine.state.directory import RunDirectory
    from fedkeel.files import guarded

    claimed = RunDirectory(path, resume=True)  # an error if another process is training there
    for name in FILES:
        guarded(path / name, lambda name=name: (path / name).unlink(missing_ok=True))
    del claimed


class RunDirectory:
    """config.toml, metrics.jsonl, checkpoint, client memory, model and summary.json of one run."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT
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
