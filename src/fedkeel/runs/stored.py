"""The config of a run in a directory, and how it differs from another."""

from __future__ import annotations

from fedkeel.engine.state.directory import HOW

import os
from pathlib import Path
from collections.abc import Callable, Collection, Iterator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedkeel.engine.settings import alike
from fedkeel.files import read_toml
from fedkeel.runs.config import RunConfig, read
from fedkeel.runs.fields import SETTINGS


def stored(path: str | Path) -> RunConfig:
    """The config of the run in a directory."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"resume: expected the directory of a run, not {type(path).__name__}")
    path = Path(path)
    if not (path / "config.toml").exists():
        raise ValueError(f"resume: {path} holds no run (there is no {path / 'config.toml'})")
    return read(path / "config.toml")


def difference(path: Path, config: RunConfig) -> str | None:
    """How the run in a directory differs from a resolved config: the first key, in words; None if it does not."""
    for key, (then, now) in differing(path, config).items():
        if key == "note":
            return f"{path} holds a run of Python objects"
        return f"{path} holds a run with {key} = {_word(then)}, this one has {_word(now)}"
    return None


def differing(path: Path, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Settings and hyper-parameters in which the run in a directory differs from a resolved config -> (its own, ours)."""
    from fedkeel.core.registry import defaults, lookup
    from fedkeel.engine.settings import alike

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
