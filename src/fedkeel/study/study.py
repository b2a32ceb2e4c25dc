"""A study: cases x methods x axes. Every combination is a branch, with its seeds and perhaps a grid to search."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkeel.core.algorithm import make
from fedkeel.engine.settings import Settings
from fedkeel.runs.config import SETTINGS, RunConfig, resolve
from fedkeel.study.file import (
    IN_TABLES,
    METHOD_KEYS,
    Paper,
    Range,
    Search,
    StudyFile,
    check_case,
    check_file,
    check_method,
    check_targets,
    check_values,
    hyperparameter_names,
    read_parts,
    takes_counts,
)
from fedkeel.study.report.table_text import paper_number
from fedkeel.study.results.numbers import check_column, needs
from fedkeel.wording import file_name, value_text

MOST_RUNS = 100_000  # A study of more runs is a mistake.
LONGEST = 200  # bytes of a directory's name: file systems allow 255, and the seed is added to it


@dataclass(frozen=True)
class Branch:
    """One line of the results: a method in a case, at one value of every axis. It runs once per seed."""

    case: str  # "" if the study has only one
    method: str  # its label
    axes: dict[str, Any]  # values of the axes that this method has
    config: RunConfig  # without values of the grid
    grid: dict[str, list[Any]]  # values to search, by setting or hyper-parameter
    seeds: tuple[int, ...]
    targets: tuple[float, ...]
    cost: float | dict[str, float] | None  # a paper's count of communication per round, see `cost_of`

    @property
    def name(self) -> str:
        """Unique in the study, for people."""
        at = ", ".join(f"{key} = {value_text(value, key)}" for key, value in self.axes.items())
        return " | ".join(part for part in (self.case, self.method, at) if part)

    @property
    def slug(self) -> str:
        """Unique in the study, for directories."""
        at = "".join(f"-{key}={value_text(value, key)}" for key, value in sorted(self.axes.items()))
        return (f"{file_name(self.case)}/" if self.case else "") + file_name(self.method + at)

    def at(self, values: Mapping[str, Any], seed: int, resplit: bool, **more: Any) -> RunConfig:
        """The settings of a run: with these values of the grid, this seed and more, and every default written out."""
        config = changed(self.config, values).changed(seed=seed, **more)
        return resolve(config.changed(split_seed=seed) if resplit else config)

    def cost_of(self, values: Mapping[str, Any]) -> float | None:
        """The paper's count with these values of the grid.

        In a table { fixed, tracking }, the second number counts only for the share of clients that track.
        """
        if not isinstance(self.cost, dict):
            return self.cost
        run = self.at(values, self.seeds[0], resplit=False)
        cohort = Settings(rounds=1, cohort=run.cohort).largest_cohort(run.clients)
        method: Any = make(run.algorithm, **run.hyperparameters)  # `check_method` refuses methods that do not track
        share: float = method.tracking_clients(cohort) / cohort
        return self.cost["fixed"] + self.cost["tracking"] * share


@dataclass(frozen=True)
class Study:
    file: dict[str, Any]  # `Study.read` of this makes the study again
    branches: list[Branch]
    title: str = ""
    about: str = ""
    axes: dict[str, list[Any]] = field(default_factory=dict)
    resplit: bool = False
    target_on: str = "test_accuracy"
    keep: bool = False
    search: Search = Search()  # noqa: RUF009  it is frozen
    paper: tuple[Paper, ...] = ()

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(branch.case for branch in self.branches))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(branch.method for branch in self.branches))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Study:
        """The study that the content of a file describes. Everything in it is checked here."""
        task, file = read_parts(values)
        for key in {"algorithm", "hyperparameters"} & values.keys():
            raise ValueError(f"{key} = {values[key]!r} is not allowed; {IN_TABLES}")
        if not file.methods:
            raise ValueError("algorithms: there are none; for example fedavg,scaffold,fedlada")
        axes = {
            name: z.values(takes_counts(name, file)) if isinstance(z, Range) else list(z) for name, z in file.sweep.items()
        }
        check_file(file, axes)
        cases: list[dict[str, Any]] = [dict(case) for case in file.cases] or [{}]
        tried: set[str] = set()
        branches = [branch for case in cases for branch in _case_branches(task, file, case, axes, tried)]
        check_directories(branches)
        check_search(file.search, branches, file.target_on)
        if sum(len(branch.seeds) for branch in branches) > MOST_RUNS:
            raise ValueError(f"study: {len(branches)} combinations with all seeds are more than {MOST_RUNS} runs")
        copied = {name: getattr(file, name) for name in ("title", "about", "resplit", "target_on", "keep", "search")}
        paper = tuple(_placed(one, file, axes) for one in file.paper)
        return cls(dict(values) | ({"sweep": axes} if axes else {}), branches, axes=axes, paper=paper, **copied)

    def is_searched(self, branch: Branch) -> bool:
        """Do trials choose values of this branch before its runs?"""
        return bool(branch.grid) or self.search.way == "fair"

    def groups(self) -> list[list[Branch]]:
        """Branches that share a search. Each stands alone, unless the search of one case serves all cases."""
        if self.search.case is None:
            return [[branch] for branch in self.branches]
        together: dict[tuple[Any, ...], list[Branch]] = {}
        for branch in self.branches:
            key = (branch.method, *branch.axes.items()) if self.is_searched(branch) else (branch.name,)
            together.setdefault(key, []).append(branch)
        for group in together.values():  # the case of the search first
            group.sort(key=lambda branch: branch.case != self.search.case)
        return list(together.values())


def path_of(store: Path, branch: Branch, seed: int, trial: Mapping[str, Any] | None = None) -> Path:
    """The directory of a run. trial: the values of the grid, if the run is a trial of a search."""
    if trial is None:
        return store / f"{branch.slug}-seed{seed}"
    values = ",".join(f"{key}={value_text(value, key)}" for key, value in trial.items())
    return store / "search" / f"{branch.slug}-{file_name(values)}-seed{seed}"


# From a file to branches ----------------------------------------------------------------------------------------------


def _case_branches(
    task: RunConfig, file: StudyFile, case: Mapping[str, Any], axes: Mapping[str, list[Any]], tried: set[str]
) -> list[Branch]:
    """All branches of a case. tried: the values of grids that were checked in the cases before."""
    values = {key: z for key, z in case.items() if key not in ("name", "target", "methods", "seeds")}
    check_case(values, case, file)
    task = task.changed(**{key: z for key, z in values.items() if key in SETTINGS})
    for_methods = {key: z for key, z in values.items() if key not in SETTINGS}  # hyper-parameters
    seeds, targets = _seeds(case.get("seeds", file.seeds), task), check_targets(case.get("target", file.target))
    branches = []
    for label, of_file in file.methods.items():
        # Later tables win: the method's, then the case's for all methods, then the case's for this method.
        table: dict[str, Any] = dict(of_file) | {
            key: z for key, z in for_methods.items() if key in hyperparameter_names(of_file.get("algorithm", label))
        }
        table |= case.get("methods", {}).get(label, {})
        for at, config, grid in _points(label, table, task, axes):
            branch = Branch(case.get("name", ""), label, at, config, grid, seeds, targets, table.get("cost"))
            check_branch(branch, file)
            _check_grid(branch, file, tried)
            branches.append(branch)
    return branches


def _seeds(given: int | list[int], task: RunConfig) -> tuple[int, ...]:
    if isinstance(given, int):
        return tuple(range(task.seed, task.seed + given))
    if "seed" in task.given:
        raise ValueError(
            f"seed = {task.seed} is not allowed beside seeds = {given}, which lists them all; leave it out, or make seeds "
            f"a number, --seeds {len(given)}"
        )
    return tuple(given)


def _points(
    label: str, table: Mapping[str, Any], task: RunConfig, axes: Mapping[str, list[Any]]
) -> Iterator[tuple[dict[str, Any], RunConfig, dict[str, list[Any]]]]:
    """(values of the axes, config, grid) for every combination of the axes that a method has."""
    fields = hyperparameter_names(table.get("algorithm", label))
    names = table.get("over", {})  # what this method calls an axis
    check_method(label, table, fields)
    values = {key: z for key, z in table.items() if key not in METHOD_KEYS}
    grid = {key: z for key, z in values.items() if is_grid(key, z)}
    fixed = {key: z for key, z in values.items() if key not in grid}
    config = changed(task.changed(algorithm=table.get("algorithm", label)), fixed)
    axes = {axis: z for axis, z in axes.items() if names.get(axis, axis) in (*SETTINGS, *fields)}
    for point in itertools.product(*axes.values()):
        at = dict(zip(axes, point, strict=True))
        settings = {names.get(axis, axis): value for axis, value in at.items()}
        yield at, changed(config, settings), {key: z for key, z in grid.items() if key not in settings}


def is_grid(key: str, value: Any) -> bool:
    """Is it a list of values to search? A list for a setting that is a list itself, such as metrics, is one value."""
    one_is_a_list = key in SETTINGS and isinstance(SETTINGS[key].default, list | tuple)
    return isinstance(value, list) and (not one_is_a_list or any(isinstance(z, list) for z in value))


def _check_grid(branch: Branch, file: StudyFile, tried: set[str]) -> None:
    """Every value of the grid must be allowed. What was checked in one case is not checked again in the others."""
    for key, values in branch.grid.items():
        check_values(f"methods: {branch.method}: the grid of {key}", key, values)
    first = {key: values[0] for key, values in branch.grid.items()}
    branch.at(first, branch.seeds[0], file.resplit)
    for key, values in branch.grid.items():
        for value in [z for z in values[1:] if f"{branch.method} {key} {z!r}" not in tried]:
            tried.add(f"{branch.method} {key} {value!r}")
            branch.at(first | {key: value}, branch.seeds[0], file.resplit)


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config with new values, each of a setting or of a hyper-parameter."""
    settings = {key: z for key, z in values.items() if key in SETTINGS}
    other = {key: z for key, z in values.items() if key not in SETTINGS}
    config = config.changed(**settings)
    return config.changed(hyperparameters=config.hyperparameters | other) if other else config


def _placed(paper: Paper, file: StudyFile, axes: Mapping[str, list[Any]]) -> Paper:
    """A paper's numbers with the names of their columns."""
    places = [case["name"] for case in file.cases] + [z for values in axes.values() for z in values]
    at = paper.at or [case["name"] for case in file.cases] or next(iter(axes.values()), [""])
    check_column("paper: metric", paper.metric)
    names = [z for z in paper.at if isinstance(z, str)]  # A number may be a value that --over has replaced.
    if names and not any(z in places for z in names):
        known = ", ".join(map(value_text, places)) or "there are none in this study"
        raise ValueError(f"paper: at = {paper.at} is not allowed; it must be names of cases or values of an axis: {known}")
    for label, values in paper.values.items():
        if label not in file.methods:
            raise ValueError(f"paper: {label} is not among the methods: {', '.join(file.methods)}")
        if len(values) != len(at):
            raise ValueError(f"paper: {label} has {len(values)} numbers for {len(at)} columns")
        for z in [z for z in values if isinstance(z, str) and not paper_number(z) and z != "-" and not z.startswith(">")]:
            raise ValueError(f"paper: {label} has {z!r}; it must be a number, 'mean±deviation', '-' or '>number'")
    return paper.model_copy(update={"at": list(at)})


# Checks of branches ---


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
    if search.way == "fair" and (search.metric != Search().metric or search.every is not None):
        key, value = ("every", search.every) if search.every is not None else ("metric", search.metric)
        raise ValueError(
            f"search: {key} = {value!r} is not allowed with way = 'fair': the validation score at the end of a trial decides"
        )
    first = {(branch.method, *branch.axes.values()): branch.grid for branch in branches if branch.case == search.case}
    for branch in [branch for branch in branches if search.case is not None]:
        there = first.get((branch.method, *branch.axes.values()), branch.grid)
        if branch.grid and there.keys() != branch.grid.keys():
            differs = ", ".join(sorted(there.keys() ^ branch.grid.keys()))
            raise ValueError(
                f"search: case = {search.case!r} is not allowed: {differs} of {branch.method} is searched in some cases and "
                "set in others, so its choice cannot be used in all"
            )
    for branch in [branch for branch in branches if branch.grid or search.way == "fair"]:
        if search.way == "fair" and (search.rounds or 0) > branch.config.rounds:
            raise ValueError(
                f"search: rounds = {search.rounds} is not allowed; {branch.name} has {branch.config.rounds} rounds"
            )
        if lacks := needs(search.metric, branch, target_on):
            raise ValueError(f"search: metric = {search.metric!r} needs {lacks}, for {branch.name}")
        if search.seed in branch.seeds:
            raise ValueError(
                f"search: seed = {search.seed} is not allowed; it is one of the seeds of {branch.name}, so the choice "
                "would depend on runs that count"
            )
