"""The keys of a study file, what each means, and the errors of wrong ones.

A study file has the settings of a run (`config.SETTINGS`) and the keys below. `docs/study.md` explains them.
Importing this module loads neither torch nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Required

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from fedkeel.runs.config import SETTINGS, RunConfig

Value = bool | int | float | str
MOST = 1000  # An axis with more values is a mistake.
# Keys of a method's table that are neither settings of a run nor hyper-parameters.
METHOD_KEYS = ("algorithm", "cost", "over")


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
        description="The column of the table that decides: the largest accuracy, the least loss or cost.",
    )
    rounds: int | None = Field(default=None, ge=1, description="Rounds of a trial (default: as the runs that count).")
    every: int | None = Field(
        default=None, ge=1, description="Rounds between evaluations of a trial (default: as the runs that count)."
    )
    way: Literal["grid", "coordinate"] = Field(
        default="grid",
        description="grid: try all combinations. coordinate: start in the middle of every list and choose one key after "
        "the other.",
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
    search: Search = Field(Search(), description="How grids are searched: seed, metric, rounds, every, way, case.")
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
    from fedkeel.errors import nearest

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
    from fedkeel.core.algorithm import algorithms, lookup
    from fedkeel.errors import nearest

    task, study = split_keys(values)
    for key in task:
        if key == "algorithms":
            raise ValueError("algorithms: methods have tables in a study file, [methods.fedavg] and so on")
        if key not in SETTINGS and any(key in [one.name for one in fields(lookup(z))] for z in algorithms()):  # type: ignore[arg-type]
            raise ValueError(f"{key}: a hyper-parameter belongs to a method's table, for example [methods.fedavg]")
        if key not in SETTINGS:
            raise ValueError(f"{key}: unknown setting{nearest(key, [*SETTINGS, *STUDY_KEYS])}")
    return RunConfig(**task), StudyFile(**study)
