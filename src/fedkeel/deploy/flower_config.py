"""The config of a run as Flower's flat config, and back. Only this module of `deploy` uses `fedkeel.runs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.deploy.limits import TIMEOUT
from fedkeel.runs.config import RunConfig, read, resolve
from fedkeel.runs.saved_config import saved_config

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.data.federation import Federation

# In Flower's config, but not part of the run's config. An empty value switches off what it stands for.
SERVER_KEYS = {"timeout": TIMEOUT, "patience": TIMEOUT, "norm_bound": 0.0, "site_keys": "", "sign_with": ""}
# Settings that only a simulation has: how clients run on one machine, and metrics that need their data.
SIMULATION_KEYS = (
    "engine",
    "workers",
    "timeout",
    "device",
    "devices",
    "ray_address",
    "metrics",
)
HYPERPARAMETERS = "hyperparameters."


def read_source(source: Path) -> RunConfig:
    """The complete config of a finished run (its directory) or of a study file."""
    return resolve(saved_config(source) if source.is_dir() else read(source))


def to_flower(config: RunConfig, out: Path) -> dict[str, Any]:
    """The table [tool.flwr.app.config]. Flower flattens it before it reaches the apps."""
    settings = {key: z for key, z in config.as_dict().items() if key not in SIMULATION_KEYS}
    return settings | {"out": str(out)} | SERVER_KEYS


def from_flower(flat: Mapping[str, Any]) -> RunConfig:
    """The config of the run that Flower's flat config describes."""
    values: dict[str, Any] = {"hyperparameters": {}}
    for key, value in flat.items():
        if key.startswith(HYPERPARAMETERS):
            values["hyperparameters"][key.removeprefix(HYPERPARAMETERS)] = value
        elif key not in SERVER_KEYS and key != "out":
            values[key] = value
    return RunConfig(**values)


def checked_from_flower(flat: Mapping[str, Any]) -> RunConfig:
    """The same with every default written out. Values that are not allowed are refused."""
    return resolve(from_flower(flat))


def train_settings(config: RunConfig) -> dict[str, Any]:
    """The keyword arguments of `fedkeel.train` in a config, without those of a simulation."""
    return {key: z for key, z in config.keywords().items() if key not in SIMULATION_KEYS}


def model_and_data(config: RunConfig) -> tuple[Callable[[], nn.Module], Federation]:
    """The function that makes the model, and all clients' data."""
    from fedkeel.runs.from_config import task  # imports torch, which `deploy init` does not need

    return task(config)
