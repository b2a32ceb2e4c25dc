"""The content of a study file: its keys, how options replace parts of it, and checks of its parts against each other.

A study file has the settings of a run (`config.SETTINGS`) and the keys of `StudyFile`. `docs/study.md` explains them.
All errors are found before the first run.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from fedkeel.core.algorithm import algorithms, lookup, spelled
from fedkeel.core.hyperparameters import is_number
from fedkeel.errors import nearest
from fedkeel.runs.config import REPLACES, SETTINGS, RunConfig
from fedkeel.wording import file_name, value_text

Value = bool | int | float | str
MOST = 1000  # An axis with more values is a mistake.
# Keys of a method's table that are neither settings of a run nor hyper-parameters.
METHOD_KEYS = ("algorithm", "cost", "over")
IN_TABLES = "methods have tables, [methods.NAME]"
# Settings that cannot be an axis, because the study sets them -> what to do instead.
NO_AXES = {"seed": "give the runs their seeds by `seeds`", "algorithm": IN_TABLES, "hyperparameters": IN_TABLES}


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Range(Part):
    """Values of an axis, evenly spaced on a logarithmic scale. Both ends are included."""

    start: float = Field(alias="from", gt=0, allow_inf_nan=False, description="First value.")
    to: float = Field(gt=0, allow_inf_nan=False, description="Last value.")
    per_decade: int = Field(3, ge=1, description="Values per factor of ten.")

    def values(self, counts: bool = False) -> list[float]:
        """counts: the axis may have whole numbers. Then all values are whole if both ends are."""
        decades = abs(math.log10(self.to) - math.log10(self.start))
        count = max(1, round(decades * self.per_decade))
        if count > MOST:
            raise ValueError(f"sweep: {self.start:g} to {self.to:g} has {count + 1} values; at most {MOST} are allowed")
        between = (math.log10(self.start) * (1 - i / count) + math.log10(self.to) * i / count for i in range(1, count))
        values = [self.start, *(float(f"{10.0**z:.3g}") for z in between), self.to]
        whole = counts and self.start.is_integer() and self.to.is_integer()
        return list(dict.fromkeys(map(round, values))) if whole else values


class Search(Part):
    """How values are chosen from grids, before the runs that count. The trials have a seed that no other run has."""

    seed: int = Field(default=1000, ge=0, description="The seed of the trials. No run that counts may have it.")
    metric: str = Field(
        default="best_accuracy",
        description="The column of the table that decides: the largest accuracy, the least loss or cost. By default "
        "validation data decide if there are some (validation > 0), and otherwise the best test accuracy or test loss.",
    )
    rounds: int | None = Field(default=None, ge=1, description="Rounds of a trial (default: as the runs that count).")
    every: int | None = Field(
        default=None, ge=1, description="Rounds between evaluations of a trial (default: as the runs that count)."
    )
    way: Literal["grid", "coordinate", "fair"] = Field(
        default="grid",
        description="grid: try all combinations. coordinate: start in the middle of every list and choose one key after "
        "the other. fair: tune every method with the same number of rounds, on validation data; grids grow past an edge.",
    )
    trials: int = Field(default=16, ge=1, description="Trials of every method (way = 'fair').")
    validation: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Part of every client's samples that decides between trials (way = 'fair'). The runs that count train "
        "on them, unless the study has validation > 0.",
    )
    case: str | None = Field(
        default=None, description="Search in this case only, and use its choice in all cases (default: search in each)."
    )


class Paper(Part):
    """Published numbers, shown beside ours."""

    metric: str = Field(description="The column of our table that shows the same quantity.")
    where: str = Field("", description="Table or figure.")
    at: list[Value] = Field([], description="The columns: names of cases, or values of the axis (default: all).")
    values: dict[str, list[float | int | str]] = Field(description="Method -> a number, 'mean±deviation' or '-' per column.")
    comparable: bool = Field(True, description="false: of another scale, so differences from ours are not marked.")


Seeds = int | list[int]
Target = float | list[float] | None


class Method(TypedDict, total=False):
    """The table of a method. All other keys are hyper-parameters or settings of a run."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    algorithm: str
    over: dict[str, str]


class Case(TypedDict, total=False):
    """One task of several. All other keys are settings of a run, or hyper-parameters of all methods that have them."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    name: Required[str]
    seeds: Seeds
    target: Target
    methods: dict[str, Method]


class StudyFile(Part):
    """The keys of a study file that are not settings of a run."""

    title: str = Field("", description="Heading of the report.")
    about: str = Field("", description="First paragraph of the report.")
    seeds: Seeds = Field(3, description="Runs of every method: a number (seed, seed + 1, ...) or a list of seeds.")
    resplit: bool = Field(False, description="true: every seed has another split (split_seed = seed).")
    target: Target = Field(None, description="An accuracy or several: the table has the rounds and floats to reach it.")
    target_on: Literal["test_accuracy", "train_accuracy"] = Field(
        "test_accuracy", description="The accuracy that must reach the target; train_accuracy needs metrics = ['train']."
    )
    keep: bool = Field(
        False, description="true: keep model, checkpoint and client memory of complete runs, not only their numbers."
    )
    methods: dict[str, Method] = Field(
        {},
        description="A table per method, with hyper-parameters and settings of a run. A list of values is a grid to search. "
        "algorithm: the method, if the table has another name. cost: a paper's count of communication per round, a number "
        "or {fixed = 3, tracking = 1}, whose second part is multiplied by the share of clients that track. over: what this "
        "method calls an axis, e.g. {lr = 'gamma'}.",
    )
    sweep: dict[str, list[Value] | Range] = Field(
        {},
        description="Axes: a setting or hyper-parameter = its values, or {from, to, per_decade}. All combinations are run.",
    )
    cases: list[Case] = Field(
        [],
        description="Several tasks, each with name, settings or hyper-parameters, target, seeds, methods.",
    )
    search: Search = Field(
        Search(), description="How grids are searched: seed, metric, rounds, every, way, trials, validation, case."
    )
    paper: list[Paper] = Field([], description="Published numbers: metric, where, at, values.")
    small: dict[str, Any] = Field({}, description="What `--scale small` changes. cases: the names of those that stay.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_one_line(error)) from None


STUDY_KEYS = tuple(StudyFile.model_fields)
KINDS = ("bool", "int", "float", "str", "Range")  # pydantic puts the type that it tried into the place of an error


def _one_line(error: ValidationError) -> str:
    errors = error.errors()
    first = next(
        (one for one in errors if "Range" in one["loc"][:-1]), errors[0]
    )  # the fault of a range, not that it is no list
    path = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "function-")) and part not in KINDS]
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        parts: dict[str, type[Part]] = {"search": Search, "paper": Paper, "sweep": Range}
        names = [field.alias or name for name, field in parts.get(path[0], StudyFile).model_fields.items()]
        return f"study: {where}: unknown key{nearest(path[-1], names)}"
    if path[0] == "methods" and len(path) < 3:
        return "methods: in a study file it must be tables, for example [methods.fedlada] with lr = 0.01"
    if path in (["cases"], ["paper"]):
        return f"study: {where} must be a list of tables, each begun by [[{where}]]"
    about = StudyFile.model_fields.get(path[0])
    meant = f". {about.description}" if about else ""
    if first["type"] == "missing":
        return f"study: {where} is missing" + (
            "; every case must have a name that no other case has" if path[0] == "cases" else meant
        )
    why = "input should be a number, a text, true or false" if first["loc"][-1] == "bool" else first["msg"].lower()
    return f"study: {where} = {first['input']!r} is not allowed: {why}{meant}"


def split_keys(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of a run, keys of the study). Unknown keys are with the settings, whose error suggests the nearest name."""
    return (
        {key: value for key, value in values.items() if key not in STUDY_KEYS},
        {key: value for key, value in values.items() if key in STUDY_KEYS},
    )


def read_parts(values: Mapping[str, Any]) -> tuple[RunConfig, StudyFile]:
    """The settings of the runs and the keys of the study, from the content of a file."""
    task, study = split_keys(values)
    for key in task:
        if key == "algorithms":
            raise ValueError("algorithms: methods have tables in a study file, [methods.fedavg] and so on")
        if key not in SETTINGS and any(key in hyperparameter_names(name) for name in algorithms()):
            raise ValueError(f"{key}: a hyper-parameter belongs to a method's table, for example [methods.fedavg]")
        if key not in SETTINGS:
            raise ValueError(f"{key}: unknown setting{nearest(key, [*SETTINGS, *STUDY_KEYS])}")
    return RunConfig(**task), StudyFile(**study)


# Options that replace parts of a file ---


def override(file: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces settings of the run in the file, its cases and its methods."""
    task, study = split_keys(copy.deepcopy(dict(file)))
    task = RunConfig(**task).changed(**settings).given
    task = {key: z for key, z in task.items() if z is not None}  # None: another setting has replaced it
    gone = {old for key in settings for old in (key, *REPLACES.get(key, ()))}
    tables = [*study.get("cases", []), *study.get("methods", {}).values()]
    tables += [table for case in study.get("cases", []) for table in case.get("methods", {}).values()]
    for table in tables:
        for key in gone & set(table):
            del table[key]
    return task | study


def choose_methods(file: Mapping[str, Any], names: str) -> dict[str, Any]:
    """The methods of --algorithms: those of the file, and others with their defaults."""
    tables = file.get("methods", {})
    listed = [name.strip() for name in names.split(",") if name.strip()] or list(tables)
    listed = [name if name in tables else spelled(name) for name in listed]
    if len(set(listed)) < len(listed):
        raise ValueError(f"algorithms = {names!r} is not allowed; it must be different names")
    others = set(tables) - set(listed)  # Unknown names in cases stay, so that they are refused later.
    cases = [dict(case) | {"methods": _without(others, case.get("methods", {}))} for case in file.get("cases", [])]
    paper = [one | {"values": _without(others, one["values"])} for one in file.get("paper", [])]
    return dict(file) | {"methods": {name: dict(tables.get(name, {})) for name in listed}, "cases": cases, "paper": paper}


def _without(names: set[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: z for name, z in values.items() if name not in names}


# Checks of a file as a whole ---


def hyperparameter_names(algorithm: str) -> list[str]:
    method: Any = lookup(algorithm)
    return [one.name for one in dataclasses.fields(method)]


def names_of(file: StudyFile) -> set[str]:
    """All settings, and the hyper-parameters of all methods."""
    return set(SETTINGS).union(*(hyperparameter_names(z.get("algorithm", label)) for label, z in file.methods.items()))


def takes_counts(axis: str, file: StudyFile) -> bool:
    """May the values of an axis be whole numbers, such as those of local_steps, cohort or memory?"""
    for label, table in file.methods.items():
        kinds = get_type_hints(RunConfig) | get_type_hints(lookup(table.get("algorithm", label)))
        kind = kinds.get(table.get("over", {}).get(axis, axis))
        if int in (kind, *get_args(kind)):
            return True
    return False


def check_file(file: StudyFile, axes: Mapping[str, Sequence[Any]]) -> None:
    known = names_of(file)
    mapped = {name for table in file.methods.values() for name in table.get("over", {})}
    for name, values in axes.items():
        if name not in known | mapped:
            raise ValueError(
                f"sweep: unknown name {name!r}{nearest(name, sorted(known))}; it must be a setting or hyper-parameter"
            )
        if name in NO_AXES:
            raise ValueError(f"sweep: {name} is not allowed; {NO_AXES[name]}")
        check_values(f"sweep: {name}", name, values)
    names = [case["name"] for case in file.cases]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("cases: every case must have a name that no other case has")
    if file.search.case is not None and file.search.case not in names:
        raise ValueError(f"search: unknown case {file.search.case!r}{nearest(file.search.case, names)}")
    for where, seeds in [("", file.seeds)] + [(f"cases: {z['name']}: ", z["seeds"]) for z in file.cases if "seeds" in z]:
        count = len(seeds) if isinstance(seeds, list) else seeds
        if count < 1 or (isinstance(seeds, list) and (min(seeds) < 0 or len(set(seeds)) < count)):
            raise ValueError(f"{where}seeds = {seeds!r} is not allowed; it must be a whole number >= 1, or different seeds")
    check_targets(file.target)


def check_targets(given: Any) -> tuple[float, ...]:
    """The targets of a study or case, checked."""
    targets = given if isinstance(given, list) else [] if given is None else [given]
    for one in targets:
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one <= 1:
            raise ValueError(f"target = {one!r} is not allowed; it must be an accuracy > 0 and <= 1")
    if len(set(targets)) < len(targets):
        raise ValueError(f"target = {given!r} is not allowed; targets must differ")
    return tuple(targets)


def check_case(values: Mapping[str, Any], case: Mapping[str, Any], file: StudyFile) -> None:
    known = names_of(file)
    for key in values:
        if key not in known:
            raise ValueError(
                f"cases: {case['name']}: unknown key {key!r}{nearest(key, sorted(known | {'target', 'methods', 'seeds'}))}"
            )
        if key in ("algorithm", "hyperparameters"):
            raise ValueError(f"cases: {case['name']}: {key} = {values[key]!r} is not allowed; {IN_TABLES}")
    for label in case.get("methods", {}):
        if label not in file.methods:
            raise ValueError(f"cases: {case['name']}: {label} is not among the methods: {', '.join(file.methods)}")


def check_method(label: str, table: Mapping[str, Any], fields: Sequence[str]) -> None:
    if "seed" in table:
        raise ValueError(f"methods: {label}: seed = {table['seed']!r} is not allowed; all methods have the study's seeds")
    known = [*fields, *(key for key in SETTINGS if key not in NO_AXES)]
    for axis, key in table.get("over", {}).items():
        if key not in known:
            raise ValueError(f"methods: {label}: over.{axis} = {key!r} is not allowed{nearest(key, known)}")
    _check_cost(label, table.get("cost"), lookup(table.get("algorithm", label)))


def _check_cost(label: str, cost: Any, method: type) -> None:
    parts = [cost]
    if isinstance(cost, dict) and set(cost) == {"fixed", "tracking"} and hasattr(method, "tracking_clients"):
        parts = list(cost.values())
    if cost is not None and not all(is_number(z) and z >= 0 for z in parts):
        raise ValueError(
            f"methods: {label}: cost = {cost!r} is not allowed; it must be a number >= 0, or for methods with `tracking` "
            "{ fixed = 3, tracking = 1 }, which is 3 + Y/S"
        )


def check_values(where: str, key: str, values: Sequence[Any]) -> None:
    """No two values of an axis or grid may lead to the same directory."""
    if not values:
        raise ValueError(f"{where} has no values")
    known: dict[str, Any] = {}
    for value in values:
        if (name := file_name(value_text(value, key))) in known:
            other = known[name]
            pair = f"{value!r} twice" if repr(other) == repr(value) else f"{other!r} and {value!r}, which are too much alike"
            raise ValueError(f"{where} has {pair}; values must differ, numbers in their first six digits")
        known[name] = value
