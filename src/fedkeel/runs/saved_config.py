"""The config of a run in a directory, and how it differs from another config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkeel.engine.settings import alike
from fedkeel.engine.state.directory import HOW, check_config
from fedkeel.files import read_toml
from fedkeel.runs.config import SETTINGS, RunConfig, default_of, read


def saved_config(path: str | Path) -> RunConfig:
    """The config of the run in a directory."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"resume: expected the directory of a run, not {type(path).__name__}")
    path = Path(path)
    if not (path / "config.toml").exists():
        raise ValueError(f"resume: {path} holds no run (there is no {path / 'config.toml'})")
    check_config(path)
    return read(path / "config.toml")


def difference(path: Path, config: RunConfig) -> str | None:
    """The first difference between the run in a directory and a resolved config, in words; None if they are the same."""
    for key, (then, now) in differences(path, config).items():
        if key == "note":
            return f"{path} holds a run of Python objects"
        return f"{path} holds a run with {key} = {_word(then)}, this one has {_word(now)}"
    return None


def differences(path: Path, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Settings and hyper-parameters in which the run in a directory differs from a resolved config -> (saved, new)."""
    from fedkeel.core.algorithm import defaults, lookup

    saved: Mapping[str, Any] = read_toml(path / "config.toml") if (path / "config.toml").exists() else {}
    if "note" in saved:
        return {"note": (saved["note"], None)}
    new = config.as_dict()
    found: dict[str, tuple[Any, Any]] = {}
    for key in [key for key in {**new, **saved} if key not in HOW]:
        # The saved file may be older than the setting. Then the run had the setting's default.
        then = saved[key] if key in saved else default_of(SETTINGS[key]) if key in SETTINGS else None
        now = new.get(key)
        if key == "hyperparameters" and isinstance(then, dict) and config.algorithm == saved.get("algorithm"):
            then = {z: defaults(lookup(config.algorithm)).get(z) for z in config.hyperparameters} | then
        if isinstance(then, dict) and isinstance(now, dict):
            found |= {z: (then.get(z), now.get(z)) for z in {**now, **then} if not alike(z, then.get(z), now.get(z))}
        elif not alike(key, then, now):
            found[key] = then, now
    return found


def _word(value: Any) -> str:
    return "none" if value is None else repr(value)
