"""The config of a run whose data, model and method have names, and how it is read from a file or the command line.

Importing this module loads neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from fedkeel.core.hyperparameters import allowed
from fedkeel.engine.setting import setting
from fedkeel.engine.settings import LOCAL_STEPS, Settings
from fedkeel.errors import nearest, refuse
from fedkeel.files import read_toml
from fedkeel.wording import literal

PRETRAINED = "hf:"  # the name of a model that is loaded with its weights starts with this
PYTHON = "python:"  # the name of a model or of data that are Python objects starts with this
# A new value of the key makes the old values of these meaningless.
REPLACES = {
    "algorithm": ("hyperparameters",),
    "local_steps": ("local_epochs",),
    "local_epochs": ("local_steps",),
}


@dataclass(frozen=True, kw_only=True, init=False)
class RunConfig(Settings):
    """The settings of training, and those that name the data, the model and the method.

    They are the keys of a study file and the options of `fedkeel run`.
    """

    data: str = setting(
        "digits",
        "Data set; `fedkeel datasets` lists them. Or your own data: FILE.csv, a folder with one folder of pictures per "
        "class, hub:NAME of the Hugging Face hub, or package.module:function, which returns a Dataset or a Federation.",
        group="Data",
        example="own/patients.csv",
        allowed="a name",
    )
    label: str | None = setting(
        None,
        "Own tables and hub:NAME: the column of classes (default: the last column of a table, label on the hub).",
        group="Data",
        example="outcome",
        allowed="the name of a column",
    )
    key: str | None = setting(
        None,
        "The owner of a sample, for --split by_key. Tables and hub:NAME: a column. Folders: a regular expression that is "
        "searched in the path of a picture.",
        group="Data",
        example="hospital",
        allowed="the name of a column, or a regular expression",
    )
    schema: str | None = setting(
        None,
        "Own tables and folders: read them as another run did: same class numbers, columns, means and deviations.",
        group="Data",
        example="runs/patients",
        allowed="the directory of a run, or a JSON file",
    )
    separator: str | None = setting(
        None,
        "Own tables: the character between cells (default: comma, semicolon, tab or |, as the heading shows).",
        group="Data",
        example=";",
        allowed="one character",
    )
    missing: str | None = setting(
        None,
        "Own tables: what takes the place of missing numbers (default: they are refused).",
        group="Data",
        example="mean",
        choices=("mean", "median", "refuse"),
    )
    regression: bool | None = setting(
        None,
        "Own tables: predicts the numbers of the label column. --no-regression takes them as classes.",
        group="Data",
        example=True,
    )
    image_size: int | None = setting(
        None, "Own folders: scales all pictures to this many pixels per side.", group="Data", example=64, least=1
    )
    data_dir: str | None = setting(
        None,
        "Folder with the files of the data sets (default: the environment variable FEDKEEL_DATA).",
        group="Data",
        example="~/data",
        allowed="a folder",
    )
    augment: str | None = setting(
        None,
        "Random changes of training images: crop-flip, or none (default).",
        group="Data",
        example="crop-flip",
        allowed="'crop-flip'",
    )
    split: str = setting(
        "dirichlet_per_class",
        "How the samples are distributed among the clients: iid, quantity, dirichlet_per_class, dirichlet_per_client, beta, "
        "shards or by_key.",
        group="Data",
        example="iid",
        allowed="a name",
    )
    clients: int = setting(100, "Number of clients.", group="Data", example=20, least=1)
    concentration: float | None = setting(
        None,
        "Dirichlet and quantity splits: the smaller, the more the clients differ.",
        group="Data",
        example=0.5,
        above=0,
        filled=0.1,
    )
    sizes: str | None = setting(
        None,
        "Dirichlet splits: sizes of the clients, equal or unequal (default: unequal per class, equal per client).",
        group="Data",
        example="equal",
        choices=("equal", "unequal"),
    )
    beta_a: float | None = setting(
        None,
        "Split beta: a client's share of the second class is drawn from Beta(a, b); this is a.",
        group="Data",
        example=1.5,
        above=0,
        filled=2.0,
    )
    beta_b: float | None = setting(
        None, "Split beta: this is b of Beta(a, b).", group="Data", example=1.5, above=0, filled=5.0
    )
    per_client: int | None = setting(None, "Split shards: shards of a client.", group="Data", example=3, least=1, filled=2)
    split_seed: int = setting(
        0,
        "Seed of the split alone: `seed` changes initial weights, sampling and batches, never who has which samples.",
        group="Data",
        example=1,
        least=0,
    )
    model: str = setting(
        "mlp",
        "Model: logistic, mlp, mlp2, mlp3 (hidden layers), mlp-bn (two, normalised); cnn, cnn3, cnn-lamb, lenet5, lenet, "
        "lenet-gelu, lenet-smu, vgg11, resnet20, resnet18-gn, resnet18-bn, resnet18-gn-7x7 (images); lstm, char-lstm "
        "(token ids); hf:NAME_OR_FOLDER, a pretrained language model for texts; or your own, package.module:factory, "
        "which is called as factory(shape, classes) or factory().",
        group="Method",
        example="resnet18-gn",
        allowed="a name",
    )
    length: int = setting(128, "Tokens of a text. Longer texts are cut off.", group="Text", example=256, least=1)
    lora_rank: int | None = setting(
        None, "Models hf:NAME: rank of the adapters.", group="Text", example=8, least=1, filled=16
    )
    lora_alpha: float | None = setting(
        None,
        "Models hf:NAME: the output of an adapter is multiplied by lora_alpha / lora_rank.",
        group="Text",
        example=32,
        above=0,
        filled=16.0,
    )
    lora_targets: str | None = setting(
        None,
        "Models hf:NAME: modules that get an adapter; auto: the usual ones of the architecture.",
        group="Text",
        example="query,value",
        allowed="names joined by commas, or auto",
        filled="auto",
    )
    lora_layers: int | None = setting(
        None,
        "Models hf:NAME: only this many of the last blocks get adapters (default: all blocks). The blocks before them are "
        "then computed once per text.",
        group="Text",
        example=2,
        least=1,
    )
    algorithm: str = setting(
        "fedavg", "Method; `fedkeel algorithms` lists them.", group="Method", example="fedlada", allowed="a name"
    )
    hyperparameters: dict[str, bool | int | float | str] = setting(  # noqa: RUF009
        {},
        "Hyper-parameters of the method.",
        group="Method",
        example={"lr": 0.01},
        allowed="a table of numbers, words, true or false",
    )

    method: ClassVar[Any] = None  # `resolve` sets it: the Algorithm with these hyper-parameters
    _given: ClassVar[frozenset[str]] = frozenset()  # the names of the values that were given

    def __init__(self, **values: Any) -> None:
        for key in values:
            if key not in SETTINGS:
                raise ValueError(f"{key}: unknown setting{nearest(key, SETTINGS)}")
        if values.get("local_steps") is None and values.get("local_epochs") is None:
            values["local_steps"] = LOCAL_STEPS
        values |= {name: _spelled(name, values[name]) for name in SPELLED if isinstance(values.get(name), str)}
        object.__setattr__(self, "_given", frozenset(values))
        for name, field in SETTINGS.items():
            object.__setattr__(self, name, values[name] if name in values else default_of(field))
        # `train` also takes lists of clients, torch's devices and functions. A file cannot hold them.
        for name, kinds in (("cohort", (int, float)), ("device", (str,)), ("lr_schedule", (str, type(None)))):
            if not isinstance(value := getattr(self, name), kinds) or isinstance(value, bool):
                raise refuse(name, value, allowed(SETTINGS[name]))
        _check_hyperparameters(self.hyperparameters)
        self.__post_init__()

    @property
    def given(self) -> dict[str, Any]:
        """The values that were given when this config was made."""
        return {name: _copied(getattr(self, name)) for name in SETTINGS if name in self._given}

    def as_dict(self) -> dict[str, Any]:
        """All values except None, which a file cannot hold."""
        values = {name: _copied(getattr(self, name)) for name in SETTINGS}
        return {name: value for name, value in values.items() if value is not None}

    def keywords(self) -> dict[str, Any]:
        """The settings of training, as keyword arguments of `train`."""
        return {one.name: _copied(getattr(self, one.name)) for one in dataclasses.fields(Settings)}

    def changed(self, **changes: Any) -> RunConfig:
        """The config with new values. Values that become meaningless go back to their defaults."""
        return RunConfig(**combined(self.given, changes))


# All settings, in the order of files and help: those with names first, conditions last.
SETTINGS: dict[str, dataclasses.Field[Any]] = {
    one.name: one
    for one in sorted(
        dataclasses.fields(RunConfig),
        key=lambda one: (one.name in Settings.__dataclass_fields__, one.metadata["group"] == "Conditions"),
    )
}
OWN_DATA = ("label", "key", "schema", "separator", "missing", "regression", "image_size")  # how own data are read
# The options of splits and of pretrained models, with the values that `resolve` fills in.
SPLIT_OPTIONS, LORA_OPTIONS = (
    {name: SETTINGS[name].metadata["filled"] for name in names}
    for names in (
        ("concentration", "sizes", "beta_a", "beta_b", "per_client"),
        ("lora_rank", "lora_alpha", "lora_targets", "lora_layers"),
    )
)


SPELLED = ("data", "split", "model", "algorithm")  # settings whose values are names, which are not case-sensitive


def _spelled(setting_name: str, value: str) -> str:
    """A name as the lists of names have it. The spelling of files, folders and package.module:attribute counts."""
    if setting_name == "algorithm":
        from fedkeel.core.algorithm import spelled

        return spelled(value)
    if setting_name == "split":
        if value == SETTINGS["split"].default:
            return value
        from fedkeel.data.partition import spelled as spelled_split

        return spelled_split(value)
    is_word = re.fullmatch(r"[\w-]+", value) is not None
    return value.lower() if is_word and not (setting_name == "data" and Path(value).exists()) else value


def combined(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config with changes. Values that become meaningless are left out: they go back to their defaults."""

    def value(values: Mapping[str, Any], key: str) -> Any:
        found = values[key] if key in values else default_of(SETTINGS[key])
        return _spelled(key, found) if key in SPELLED and isinstance(found, str) else found

    gone = {old for key in REPLACES if key in changes and changes[key] != value(given, key) for old in REPLACES[key]}
    if "split" in changes and value(changes, "split") != value(given, "split"):
        gone |= set(SPLIT_OPTIONS) - _options_of(value(changes, "split"))
    if str(value(given, "model")).startswith(PRETRAINED) and not str(changes.get("model", PRETRAINED)).startswith(
        PRETRAINED
    ):
        gone |= set(LORA_OPTIONS)
    return {key: z for key, z in given.items() if key not in gone} | dict(changes)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a setting, as a file would hold it."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _copied(field.default)


def _copied(value: Any) -> Any:
    """Lists and tables as copies, so that a config cannot be changed through them."""
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, list | tuple) else value


def _check_hyperparameters(values: Any) -> None:
    """The types only: `resolve` checks names and ranges, which depend on the method."""
    if not isinstance(values, dict):
        raise refuse("hyperparameters", values, allowed(SETTINGS["hyperparameters"]))
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise refuse(f"hyperparameters.{key}", value, "a number, a word, true or false")


# Files ----------------------------------------------------------------------------------------------------------------


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a study file. The config.toml of a run is one, unless the run was made from Python objects."""
    values = read_toml(path)
    if "note" in values:
        raise ValueError(f"study: {path} cannot be run from its file: {values['note']}")
    return values


def read(path: str | Path) -> RunConfig:
    """The run that a study file describes."""
    return RunConfig(**read_settings(path))


# Values that the command line gives as text ---------------------------------------------------------------------------


def hyperparameters_from(algorithm: str, given: Iterable[str]) -> dict[str, Any]:
    """Texts `name=value` as hyper-parameters of a method, in the types of their fields. `name` alone is a switch."""
    from fedkeel.core.algorithm import lookup

    fields = {field.name: field for field in dataclasses.fields(lookup(algorithm))}  # type: ignore[arg-type]
    kinds: dict[str, Any] = get_type_hints(lookup(algorithm))
    values: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        key = name.replace("-", "_")
        if not equals and key in fields and kinds[key] is not bool:
            raise ValueError(f"option --{name} needs a value; it must be {allowed(fields[key])}")
        values[key] = True if not equals else text if kinds.get(key) is str else literal(text)
    return values


# Checked, with every default written out ------------------------------------------------------------------------------


def resolve(config: RunConfig) -> RunConfig:
    """The config, checked, with its method built and every default written out.

    A run keeps the result, so that its file means the same after a default has changed.
    """
    if config.method is not None:
        return config
    from fedkeel.core.algorithm import Plan, make

    if config.regression and "split" not in config.given:
        config = config.changed(split="iid")  # the default split needs classes
    algo = make(config.algorithm, **config.hyperparameters)
    plain = {key: value for key, value in dataclasses.asdict(algo).items() if value is not None}  # type: ignore[call-overload]
    filled = missing_split_options(config) | missing_lora_options(config) | {"hyperparameters": plain}
    if "cohort" not in config.given and config.clients < config.cohort:  # type: ignore[operator]
        filled["cohort"] = config.clients  # all clients, if there are fewer than the default
    config = config.changed(**filled)
    config.check_with(algo, config.clients)
    # A method may refuse its plan. Better now than after the data are loaded, when the run makes the plan it uses.
    algo.plan(Plan(N=config.clients, S=config.largest_cohort(config.clients), K=config.local_steps or 1, T=config.rounds))
    object.__setattr__(config, "method", algo)
    return config


def missing_split_options(config: RunConfig) -> dict[str, Any]:
    """The options that the split takes and that were not given, with their defaults."""
    return {key: SPLIT_OPTIONS[key] for key in _options_of(config.split) if getattr(config, key) is None}


def with_split_defaults(config: RunConfig) -> RunConfig:
    """The config with the options that its split takes."""
    return config.changed(**missing_split_options(config))


def missing_lora_options(config: RunConfig) -> dict[str, Any]:
    """The options of adapters that were not given, with their defaults. Models that are not pretrained have no adapters and
    refuse them."""
    given = {key: getattr(config, key) for key in LORA_OPTIONS if getattr(config, key) is not None}
    if config.model.startswith(PRETRAINED):
        return {key: value for key, value in LORA_OPTIONS.items() if key not in given}
    for key, value in given.items():
        raise ValueError(f"{key} = {value!r} is not allowed with model {config.model!r}; it is for models {PRETRAINED}NAME")
    return {}


def _options_of(split: str) -> set[str]:
    from fedkeel.data.partition import PARTITIONS

    takes = inspect.signature(PARTITIONS[split]).parameters if split in PARTITIONS else {}
    return {key for key in SPLIT_OPTIONS if key in takes}
