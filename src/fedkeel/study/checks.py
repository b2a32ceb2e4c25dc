"""What a study may set, and checks of its parts against each other. All errors are found before the first run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fedkeel.core.algorithm import lookup
from fedkeel.core.hyperparameters import is_number
from fedkeel.errors import nearest
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.study.file import Search, StudyFile
from fedkeel.study.results.columns import check_column, needs
from fedkeel.wording import file_name, value_text

if TYPE_CHECKING:
    from fedkeel.study.study import Branch

LONGEST = 200  # bytes of a directory's name: file systems allow 255, and the seed is added to it
IN_TABLES = "methods have tables, [methods.NAME]"
# Settings that no axis may have, because the study sets them -> what to do instead.
NO_AXES = {"seed": "give the runs their seeds by `seeds`", "algorithm": IN_TABLES, "hyperparameters": IN_TABLES}


def fields_of(label: str, table: Mapping[str, Any]) -> list[str]:
    """The hyper-parameters of the method that a table is about."""
    method = lookup(table.get("algorithm", label))
    return [one.name for one in dataclasses.fields(method)]  # type: ignore[arg-type]


def names_of(file: StudyFile) -> set[str]:
    """All settings, and the hyper-parameters of all methods."""
    return set(SETTINGS).union(*(fields_of(label, table) for label, table in file.methods.items()))


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


def check_branch(branch: Branch, file: StudyFile) -> None:
    """Refuses settings that would have no effect together with others."""
    if file.resplit and "split_seed" in branch.config.given:
        raise ValueError(
            f"split_seed = {branch.config.split_seed} is not allowed with resplit: every run's split has the run's seed"
        )
    if branch.targets and branch.config.evaluate_every == 0:
        raise ValueError(
            f"evaluate_every = 0 is not allowed with a target: {branch.name} is evaluated only at its end, so the round "
            "that reaches it would not be known"
        )
    if branch.targets and file.target_on == "train_accuracy" and "train" not in branch.config.metrics:
        raise ValueError(
            f"target_on = 'train_accuracy' needs metrics = ['train']; {branch.name} has {branch.config.metrics}"
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


def check_directories(branches: Sequence[Branch]) -> None:
    """Two branches must not share a directory: names may have any characters, directories may not."""
    known: dict[str, Branch] = {}
    for branch in branches:
        if any(len(part.encode()) > LONGEST for part in branch.slug.split("/")):
            raise ValueError(f"study: '{branch.name[:40]}...' is too long for the name of a directory, at most {LONGEST}")
        if (other := known.setdefault(branch.slug, branch)) is not branch:
            raise ValueError(
                f"study: '{other.name}' and '{branch.name}' would share the directory {branch.slug}; "
                "their names must differ in letters, digits or one of . = + -"
            )


def check_search(search: Search, branches: Sequence[Branch], target_on: str) -> None:
    """The metric of a search must be measured, and its seed must not be one of the runs that count."""
    check_column("search: metric", search.metric)
    first = {(branch.method, *branch.axes.values()): branch.grid for branch in branches if branch.case == search.case}
    for branch in [branch for branch in branches if search.case is not None]:
        there = first.get((branch.method, *branch.axes.values()), branch.grid)
        if branch.grid and there.keys() != branch.grid.keys():
            differs = ", ".join(sorted(there.keys() ^ branch.grid.keys()))
            raise ValueError(
                f"search: case = {search.case!r} is not allowed: {differs} of {branch.method} is searched in some cases and "
                "set in others, so its choice cannot be used in all"
            )
    for branch in [branch for branch in branches if branch.grid]:
        if lacks := needs(search.metric, branch, target_on):
            raise ValueError(f"search: metric = {search.metric!r} needs {lacks}, for {branch.name}")
        if search.seed in branch.seeds:
            raise ValueError(
                f"search: seed = {search.seed} is not allowed; it is one of the seeds of {branch.name}, so the choice "
                "would depend on runs that count"
            )
