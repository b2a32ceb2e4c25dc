"""What a study file says of a run whose data, model and algorithm have names, and what the run's directory keeps.

Importing this module loads neither torch nor numpy.
"""

from __future__ import annotations

from fedkeel.files import read_toml

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkeel.runs.fields import LOCAL_STEPS, SETTINGS

# For the splits that take them; None: the split's own.
SPLIT_OPTIONS = {"concentration": 0.1, "sizes": None, "beta_a": 2.0, "beta_b": 5.0, "per_client": 2}
PRETRAINED = "hf:"  # begins the name of a model that is loaded with its weights
LORA_OPTIONS = {"lora_rank": 16, "lora_alpha": 16.0, "lora_targets": "auto", "lora_layers": None}  # for those models
# A new value of the key makes older values of these meaningless.
REPLACES = {
    "algorithm": ("hyperparameters",),
    "local_steps": ("local_epochs",),
    "local_epochs": ("local_steps",),
}


def described(name: str) -> Any:
    """A field of RunConfig with what `fields` says of it."""
    about = SETTINGS[name]
    return Field(about.default, description=about.doc, examples=[about.example])


class RunConfig(BaseModel):
    """The keys of a study file, which are also the options of `fedkeel run`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    data: str = described("data")
    data_dir: str | None = described("data_dir")
    augment: str | None = described("augment")
    split: str = described("split")
    clients: int = described("clients")
    concentration: float | None = described("concentration")
    sizes: str | None = described("sizes")
    beta_a: float | None = described("beta_a")
    beta_b: float | None = described("beta_b")
    per_client: int | None = described("per_client")
    split_seed: int = described("split_seed")
    model: str = described("model")
    length: int = described("length")
    lora_rank: int | None = described("lora_rank")
    lora_alpha: float | None = described("lora_alpha")
    lora_targets: str | None = described("lora_targets")
    lora_layers: int | None = described("lora_layers")
    algorithm: str = described("algorithm")
    hyperparameters: dict[str, bool | int | float | str] = described("hyperparameters")
    rounds: int = described("rounds")
    cohort: int | float = described("cohort")
    local_steps: int | None = described("local_steps")
    local_epochs: int | None = described("local_epochs")
    batch_size: int | Literal["all"] = described("batch_size")
    weight_decay: float = described("weight_decay")
    lr_decay: float = described("lr_decay")
    clip: float | None = described("clip")
    weights: str = described("weights")
    seed: int = described("seed")
    evaluate_every: int = described("evaluate_every")
    metrics: list[str] = described("metrics")
    engine: str = described("engine")
    device: str = described("device")
    workers: int | None = described("workers")
    timeout: float | None = described("timeout")
    ray_address: str = described("ray_address")
    min_clients: int = described("min_clients")

    def __init__(self, **values: Any) -> None:
        """As pydantic, with errors of one line that name the key, the value and what is allowed."""
        if values.get("local_steps") is None and values.get("local_epochs") is None:
            values["local_steps"] = LOCAL_STEPS
        elif values.get("local_steps") is not None and values.get("local_epochs") is not None:
            raise ValueError(
                f"local_steps = {values['local_steps']} is not allowed beside local_epochs = {values['local_epochs']}; "
                "give one of them"
            )
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_one_line(error)) from None
        for key in (
            "workers",
            "timeout",
            "length",
            "lora_rank",
            "lora_alpha",
            "lora_layers",
        ):  # the engine checks all other ranges
            if (value := getattr(self, key)) is not None and not 0 < value < float("inf"):
                raise ValueError(_refused(key, value))

    def changed(self, **changes: Any) -> RunConfig:
        """The config with new values; what they make meaningless goes back to its default."""
        values = self.model_dump(exclude_unset=True)
        gone = [old for key, z in changes.items() if z != getattr(self, key, None) for old in REPLACES.get(key, ())]
        if changes.get("split", self.split) != self.split:
            gone += set(SPLIT_OPTIONS) - _options_of(changes["split"])
        if not changes.get("model", self.model).startswith(PRETRAINED):
            gone += LORA_OPTIONS if self.model.startswith(PRETRAINED) else ()
        return RunConfig(**{key: value for key, value in values.items() if key not in gone} | changes)


def _one_line(error: ValidationError) -> str:
    from fedkeel.errors import nearest

    first = error.errors()[0]
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown setting{nearest(key, SETTINGS)}"
    if key == "hyperparameters" and len(first["loc"]) > 1:
        return f"{key}.{first['loc'][1]} = {first['input']!r} is not allowed; it must be a number, a word, true or false"
    return _refused(key, first["input"])


def _refused(key: str, value: Any) -> str:
    return f"{key} = {value!r} is not allowed; it must be {SETTINGS[key].allowed}"


# Study files ----------------------------------------------------------------------------------------------------------


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a study file; a run's config.toml is one, unless it was made from Python objects."""
    values = read_toml(path)
    if "note" in values:
        raise ValueError(f"study: {path} cannot be run from its file: {values['note']}")
    return values


def read(path: str | Path) -> RunConfig:
    """The run that a study file describes."""
    return RunConfig(**read_settings(path))


# Checked, with every default written out ------------------------------------------------------------------------------


def resolve(config: RunConfig) -> RunConfig:
    """Checks the config and writes every default out, so that what is kept means the same when a default changes."""
    import dataclasses

    from fedkeel.core.algorithm import Plan
    from fedkeel.core.registry import make
    from fedkeel.engine.metrics import check as check_metrics
    from fedkeel.engine.settings import Settings, check_engine

    algo = make(config.algorithm, **config.hyperparameters)
    check_metrics(config.metrics, algo)
    names = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{key: value for key, value in settings_of(config).items() if key in names})
    settings.check_clients(config.clients)
    check_engine(config.engine)
    cohort = settings.largest_cohort(config.clients)
    algo.plan(
        Plan(N=config.clients, S=cohort, K=config.local_steps or 1, T=config.rounds)
    )  # may refuse; done in earnest later
    plain = {key: value for key, value in dataclasses.asdict(algo).items() if value is not None}  # type: ignore[call-overload]
    return with_lora_defaults(with_split_defaults(config)).changed(hyperparameters=plain)


def with_split_defaults(config: RunConfig) -> RunConfig:
    """The config with the options that its split takes."""
    missing = [key for key in _options_of(config.split) if getattr(config, key) is None]
    return config.changed(**{key: SPLIT_OPTIONS[key] for key in missing})


def with_lora_defaults(config: RunConfig) -> RunConfig:
    """The config with what a pretrained model is adapted by; refused for other models."""
    given = {key: getattr(config, key) for key in LORA_OPTIONS if getattr(config, key) is not None}
    if config.model.startswith(PRETRAINED):
        return config.changed(**(LORA_OPTIONS | given))
    for key, value in given.items():
        raise ValueError(f"{key} = {value!r} is not allowed with model {config.model!r}; it is for models {PRETRAINED}NAME")
    return config


def _options_of(split: str) -> set[str]:
    import inspect

    from fedkeel.data.partition import PARTITIONS

    takes = inspect.signature(PARTITIONS[split]).parameters if split in PARTITIONS else {}
    return {key for key in SPLIT_OPTIONS if key in takes}


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The keywords of `train` that a config holds as they are."""
    keys = ("rounds", "cohort", "local_steps", "weight_decay", "lr_decay", "clip", "weights", "seed", "engine", "device")
    values = {
        key: getattr(config, key)
        for key in (*keys, "evaluate_every", "metrics", "min_clients", "workers", "timeout", "ray_address")
    }
    batch_size = None if config.batch_size == "all" else config.batch_size
    return values | {"batch_size": batch_size, "local_epochs": 1 if config.local_epochs is None else config.local_epochs}
