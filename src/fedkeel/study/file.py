"""What a study file may say: its keys, what each means, and the errors of wrong ones.

A study file is a run's settings (`config.SETTINGS`), and the keys below for many runs; `docs/study.md` explains them.
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
MOST = 1000  # values of an axis; more than that is a slip of the pen
# Keys of a method's table that are neither settings of a run nor hyper-parameters.
METHOD_KEYS = ("algorithm", "cost", "over")


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Range(Part):
    """Values of an axis that are evenly spaced on a logarithmic scale, both ends included."""

    start: float = Field(alias="from", gt=0, allow_inf_nan=False, description="First value.")
    to: float = Field(gt=0, allow_inf_nan=False, description="Last value.")
    per_decade: int = Field(3, ge=1, description="Values per factor of ten.")

    def values(self, counts: bool = False) -> list[float]:
        """counts: of something that may be a whole number, which all values are if both ends are."""
        decades = abs(math.log10(self.to) - math.log10(self.start))
        count = max(1, round(decades * self.per_decade))
        if count > MOST:
            raise ValueError(f"sweep: {self.start:g} to {self.to:g} has {count + 1} values; at most {MOST} are allowed")
        between = (math.log10(self.start) * (1 - i / count) + math.log10(self.to) * i / count for i in range(1, count))
        found = [self.start, *(float(f"{10.0**z:.3g}") for z in between), self.to]
        whole = counts and self.start.is_integer() and self.to.is_integer()
        return list(dict.fromkeys(map(round, found))) if whole else found


class Search(Part):
    """How values are chosen from grids: on one seed of its own, before the runs that count."""

    seed: int = Field(1000, ge=0, description="The seed of the search; no run that counts has it.")
    metric: str = Field(
        "best_accuracy", description="What the choice is by: a column of the table; losses and costs: the least."
    )
    rounds: int | None = Field(None, ge=1, description="Rounds of a trial (default: as many as the runs that count).")
    every: int | None = Field(None, ge=1, description="Rounds between the evaluations of a trial (default: as the others).")
    way: Literal["grid", "coordinate"] = Field(
        "grid",
        description="grid: all combinations; coordinate: one key after the other, each with the best of those before, "
        "beginning in the middle of every list.",
    )
    case: str | None = Field(None, description="Search in this case only and use its choice in all (default: in each).")


class Paper(Part):
    """Numbers that a paper prints, to be shown beside ours."""

    metric: str = Field(description="The column of our table that they belong to.")
    where: str = Field("", description="Table or figure.")
    at: list[Value] = Field([], description="What the columns are: names of cases or values of the axis (default: all).")
    values: dict[str, list[float | int | str]] = Field(description="Method -> a number, 'mean±deviation' or '-' per column.")
    comparable: bool = Field(True, description="false: of another scale, so no difference from ours is marked.")


Seeds = int | list[int]
Target = float | list[float] | None


class Method(TypedDict, total=False):
    """A method's table; all other keys are hyper-parameters or settings of a run."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    algorithm: str
    over: dict[str, str]


class Case(TypedDict, total=False):
    """A task of its own; all other keys are settings of a run, or hyper-parameters of all methods that have them."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    name: Required[str]
    seeds: Seeds
    target: Target
    methods: dict[str, Method]


class StudyFile(Part):
    """The keys of a study beside those of a run."""

    title: str = Field("", description="Heading of the report.")
    about: str = Field("", description="What it shows, and settings that a paper does not state.")
    seeds: Seeds = Field(3, description="Runs of every method: a number (seed, seed + 1, ...) or a list of seeds.")
    resplit: bool = Field(False, description="Every seed has a split of its own (split_seed = seed), not all the same.")
    target: Target = Field(None, description="Accuracies for rounds and floats to target.")
    target_on: Literal["test_accuracy", "train_accuracy"] = Field(
        "test_accuracy", description="Which accuracy the target is about; train_accuracy needs metrics = ['train']."
    )
    keep: bool = Field(
        False, description="Keep model, checkpoint and client memory of complete runs, not only their numbers."
    )
    methods: dict[str, Method] = Field(
        {},
        description="A table per method: hyper-parameters and settings of a run; a list of values is a grid to be searched. "
        "algorithm: its name, if the table has another; cost: a paper's own count of communication per round, a "
        "number or {fixed = 3, tracking = 1}, whose second part is times the share of clients that track; "
        "over: what an axis is called here, e.g. {lr = 'gamma'}.",
    )
    sweep: dict[str, list[Value] | Range] = Field(
        {},
        description="Axes: a setting or hyper-parameter -> its values, or {from, to, per_decade}; all combinations are run.",
    )
    cases: list[Case] = Field(
        [],
        description="Tasks to be compared, each with name, settings or hyper-parameters of its own, target, seeds, methods.",
    )
    search: Search = Field(Search(), description="How grids are searched: seed, metric, rounds, way, case.")
    paper: list[Paper] = Field([], description="Published numbers: metric, where, at, values.")
    small: dict[str, Any] = Field({}, description="What `--scale small` changes; cases: names of those that are kept.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_one_line(error)) from None


STUDY_KEYS = tuple(StudyFile.model_fields)
KINDS = ("bool", "int", "float", "str", "Range")  # of a value, in the place of an error


def _one_line(error: ValidationError) -> str:
    from fedkeel.errors import nearest

    errors = error.errors()
    first = next((one for one in errors if "Range" in one["loc"][:-1]), errors[0])  # not that a range is no list
    path = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "function-")) and part not in KINDS]
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = {"search": Search, "paper": Paper, "sweep": Range}.get(path[0], StudyFile)
        names = [field.alias or name for name, field in known.model_fields.items()]
        return f"study: {where}: unknown key{nearest(path[-1], names)}"
    if path[0] == "methods" and len(path) < 3:
        return "methods: in a study file it must be tables, for example [methods.fedlada] with lr = 0.01"
    if path in (["cases"], ["paper"]):
        return f"study: {where} must be a list of tables, each begun by [[{where}]]"
    about = StudyFile.model_fields.get(path[0])
    meant = f". {about.description}" if about else ""
    if first["type"] == "missing":
        return f"study: {where} is missing" + ("; every case must have a name of its own" if path[0] == "cases" else meant)
    why = "input should be a number, a text, true or false" if first["loc"][-1] == "bool" else first["msg"].lower()
    return f"study: {where} = {first['input']!r} is not allowed: {why}{meant}"


def split_keys(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of a run, keys of the study); what neither knows is with the settings, whose error names the nearest."""
    return (
        {key: value for key, value in values.items() if key not in STUDY_KEYS},
        {key: value for key, value in values.items() if key in STUDY_KEYS},
    )


def read_parts(values: Mapping[str, Any]) -> tuple[RunConfig, StudyFile]:
    """The task and the study that the content of a file describes."""
    from fedkeel.core.registry import algorithms, lookup
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
