"""What the directory of a run holds, read back: is it complete, is it the same run, what did it find."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkeel.config import RunConfig, read_toml
from fedkeel.fields import SETTINGS

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
    from fedkeel.engine.checkpoint import guarded, write_atomically

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


def difference(path: Path, config: RunConfig) -> str | None:
    """How the run in a directory differs from a resolved config: the first key, in words; None if it does not."""
    for key, (then, now) in differing(path, config).items():
        if key == "note":
            return f"{path} holds a run of Python objects"
        return f"{path} holds a run with {key} = {_word(then)}, this one has {_word(now)}"
    return None


def differing(path: Path, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Settings and hyper-parameters in which the run in a directory differs from a resolved config -> (its own, ours)."""
    from fedkeel.core.algorithm import defaults, lookup
    from fedkeel.engine.checkpoint import alike

    theirs: Mapping[str, Any] = read_toml(path / "config.toml") if (path / "config.toml").exists() else {}
    if "note" in theirs:
        return {"note": (theirs["note"], None)}
    ours, found = config.model_dump(exclude_none=True), {}
    for key in [key for key in {**ours, **theirs} if key not in HOW]:
        missing = SETTINGS[key].default if key in SETTINGS else None  # written before there was such a key
        then, now = theirs.get(key, missing), ours.get(key)
        if key == "hyperparameters" and isinstance(then, dict) and config.algorithm == theirs.get("algorithm"):
            then = {z: defaults(lookup(config.algorithm)).get(z) for z in now} | then
        if isinstance(then, dict) and isinstance(now, dict):
            found |= {z: (then.get(z), now.get(z)) for z in {**now, **then} if not alike(z, then.get(z), now.get(z))}
        elif not alike(key, then, now):
            found[key] = then, now
    return found


def _word(value: Any) -> str:
    return "none" if value is None else repr(value)


def clear(path: Path) -> None:
    """Removes the run in a directory, and nothing else that may lie there."""
    from fedkeel.engine.checkpoint import guarded
    from fedkeel.engine.run import RunDirectory

    claimed = RunDirectory(path, resume=True)  # an error if another process is training there
    for name in FILES:
        guarded(path / name, lambda name=name: (path / name).unlink(missing_ok=True))
    del claimed
