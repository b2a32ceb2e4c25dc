"""A study: cases x methods x axes, each with its seeds and perhaps a grid to be searched; what a study file expands to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.engine.settings import Settings
from fedkeel.rules.tracking import pick
from fedkeel.runs.config import RunConfig, resolve
from fedkeel.runs.fields import SETTINGS
from fedkeel.study.checks import (
    IN_TABLES,
    check_branch,
    check_case,
    check_directories,
    check_file,
    check_method,
    check_search,
    check_values,
    targets,
)
from fedkeel.study.file import METHOD_KEYS, Paper, Range, Search, StudyFile, read_parts
from fedkeel.study.names import fields_of, plain, safe, takes_counts
from fedkeel.study.report.table_text import paper_number
from fedkeel.study.results.columns import check_column

MANY = 100_000  # runs; more than that is a slip of the pen


@dataclass(frozen=True)
class Branch:
    """One line of the results: a method on a case, at one value of every axis; run with all seeds."""

    case: str  # "" if the study has only one
    method: str  # its label
    axes: dict[str, Any]  # values of the axes that this method has
    config: RunConfig  # without the chosen values of the grid
    grid: dict[str, list[Any]]
    seeds: tuple[int, ...]
    targets: tuple[float, ...]
    cost: float | dict[str, float] | None  # a paper's own count of communication per round; `cost_of` tells the number

    @property
    def name(self) -> str:
        """Unique in the study, for people."""
        at = ", ".join(f"{key} = {plain(value, key)}" for key, value in self.axes.items())
        return " | ".join(part for part in (self.case, self.method, at) if part)

    @property
    def slug(self) -> str:
        """Unique in the study, for directories."""
        at = "".join(f"-{key}={plain(value, key)}" for key, value in sorted(self.axes.items()))
        return (f"{safe(self.case)}/" if self.case else "") + safe(self.method + at)

    def at(self, values: Mapping[str, Any], seed: int, resplit: bool, **more: Any) -> RunConfig:
        """The run with these values of the grid, this seed and further settings, every default written out."""
        config = changed(self.config, values).changed(seed=seed, **more)
        return resolve(config.changed(split_seed=seed) if resplit else config)

    def cost_of(self, values: Mapping[str, Any]) -> float | None:
        """The paper's count with these values of the grid; a table's `tracking` is for the share of clients that track."""
        if not isinstance(self.cost, dict):
            return self.cost
        run = self.at(values, self.seeds[0], resplit=False)
        cohort = Settings(rounds=1, cohort=run.cohort).largest_cohort(run.clients)
        tracks = pick(np.random.default_rng(), cohort, run.hyperparameters.get("tracking"))  # who is random, how many is not
        return self.cost["fixed"] + self.cost["tracking"] * float(tracks.mean())


@dataclass(frozen=True)
class Study:
    file: dict[str, Any]  # what it was made from; `Study.read` of it is this study again
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
        """The study that the content of a file describes; everything in it is checked here."""
        task, file = read_parts(values)
        for key in [key for key in ("algorithm", "hyperparameters") if key in values]:  # they would be of one method only
            raise ValueError(f"{key} = {values[key]!r} is not allowed; {IN_TABLES}")
        if not file.methods:
            raise ValueError("algorithms: there are none; for example fedavg,scaffold,fedlada")
        axes = {
            name: z.values(takes_counts(name, file)) if isinstance(z, Range) else list(z) for name, z in file.sweep.items()
        }
        check_file(file, axes)
        cases: Sequence[Mapping[str, Any]] = file.cases or [{}]
        tried: set[str] = set()
        branches = [b for case in cases for b in _branches(task, file, case, axes, tried)]
        check_directories(branches)
        check_search(file.search, branches, file.target_on)
        if sum(len(branch.seeds) for branch in branches) > MANY:
            raise ValueError(f"study: {len(branches)} combinations with all seeds are more than {MANY} runs")
        paper = tuple(_placed(one, file, axes) for one in file.paper)
        return cls(
            file=dict(values) | ({"sweep": axes} if axes else {}),
            branches=branches,
            title=file.title,
            about=file.about,
            axes=axes,
            resplit=file.resplit,
            target_on=file.target_on,
            keep=file.keep,
            search=file.search,
            paper=paper,
        )

    def groups(self) -> list[list[Branch]]:
        """Branches that share a search: one each, or those of all cases if the search is made in one of them."""
        if self.search.case is None:
            return [[branch] for branch in self.branches]
        together: dict[tuple[Any, ...], list[Branch]] = {}
        for branch in self.branches:
            key = (branch.method, *branch.axes.items()) if branch.grid else (branch.name,)
            together.setdefault(key, []).append(branch)
        for group in together.values():  # the case of the search first
            group.sort(key=lambda branch: branch.case != self.search.case)
        return list(together.values())


def _branches(
    task: RunConfig, file: StudyFile, case: Mapping[str, Any], axes: Mapping[str, list[Any]], tried: set[str]
) -> list[Branch]:
    """All lines of a case. tried: values of grids that are known to be allowed."""
    own = {key: z for key, z in case.items() if key not in ("name", "target", "methods", "seeds")}
    check_case(own, case, file)
    first = task.changed(**{key: z for key, z in own.items() if key in SETTINGS})
    seeds = case.get("seeds", file.seeds)
    if isinstance(seeds, list) and "seed" in first.model_fields_set:
        raise ValueError(
            f"seed = {first.seed} is not allowed beside seeds = {seeds}, which says them all; leave it out, or make seeds a "
            f"number, --seeds {len(seeds)}"
        )
    seeds = tuple(range(first.seed, first.seed + seeds)) if isinstance(seeds, int) else tuple(seeds)
    aims = targets(case.get("target", file.target))
    found = []
    for label, table in file.methods.items():
        table = dict(table) | {key: z for key, z in own.items() if key not in SETTINGS and key in fields_of(label, table)}
        table |= case.get("methods", {}).get(label, {})
        name = table.get("algorithm", label)
        over, fields = table.get("over", {}), fields_of(label, table)
        check_method(label, table, fields)
        values = {key: z for key, z in table.items() if key not in METHOD_KEYS}
        grid = {key: z for key, z in values.items() if is_grid(key, z)}
        config = changed(first.changed(algorithm=name), {key: z for key, z in values.items() if key not in grid})
        mine = {axis: axes[axis] for axis in axes if over.get(axis, axis) in (*SETTINGS, *fields)}
        for point in itertools.product(*mine.values()):
            at = dict(zip(mine, point, strict=True))
            fixed = {over.get(axis, axis): value for axis, value in at.items()}
            rest = {key: z for key, z in grid.items() if key not in fixed}
            branch = Branch(case.get("name", ""), label, at, changed(config, fixed), rest, seeds, aims, table.get("cost"))
            check_branch(branch, file)
            _try_out(branch, file, tried)
            found.append(branch)
    return found


def is_grid(key: str, value: Any) -> bool:
    """Is it a list of values to be searched? A setting that is a list itself, as metrics, is one value."""
    one_is_a_list = key in SETTINGS and isinstance(SETTINGS[key].default, list | tuple)
    return isinstance(value, list) and (not one_is_a_list or any(isinstance(z, list) for z in value))


def _try_out(branch: Branch, file: StudyFile, tried: set[str]) -> None:
    """Every value of the grid must be allowed by itself; what was tried in one case is not tried in the others."""
    for key, values in branch.grid.items():
        check_values(f"methods: {branch.method}: the grid of {key}", key, values)
    first = {key: values[0] for key, values in branch.grid.items()}
    branch.at(first, branch.seeds[0], file.resplit)
    for key, values in branch.grid.items():
        for value in [z for z in values[1:] if f"{branch.method} {key} {z!r}" not in tried]:
            tried.add(f"{branch.method} {key} {value!r}")
            branch.at(first | {key: value}, branch.seeds[0], file.resplit)


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config with new settings and hyper-parameters, told apart by their names."""
    settings = {key: z for key, z in values.items() if key in SETTINGS}
    other = {key: z for key, z in values.items() if key not in SETTINGS}
    config = config.changed(**settings)
    return config.changed(hyperparameters=config.hyperparameters | other) if other else config


def _placed(paper: Paper, file: StudyFile, axes: Mapping[str, list[Any]]) -> Paper:
    """A paper's numbers with the names of their columns."""
    places = [case["name"] for case in file.cases] + [z for values in axes.values() for z in values]
    at = paper.at or [case["name"] for case in file.cases] or next(iter(axes.values()), [""])
    check_column("paper: metric", paper.metric)
    names = [z for z in paper.at if isinstance(z, str)]  # numbers may be of values that --over has replaced
    if names and not any(z in places for z in names):
        told = ", ".join(map(plain, places)) or "there are none in this study"
        raise ValueError(f"paper: at = {paper.at} is not allowed; it must be names of cases or values of an axis: {told}")
    for label, values in paper.values.items():
        if label not in file.methods:
            raise ValueError(f"paper: {label} is not among the methods: {', '.join(file.methods)}")
        if len(values) != len(at):
            raise ValueError(f"paper: {label} has {len(values)} numbers for {len(at)} columns")
        for z in [z for z in values if isinstance(z, str) and not paper_number(z) and z != "-" and not z.startswith(">")]:
            raise ValueError(f"paper: {label} has {z!r}; it must be a number, 'mean±deviation', '-' or '>number'")
    return paper.model_copy(update={"at": list(at)})


def path_of(store: Path, branch: Branch, seed: int, trial: Mapping[str, Any] | None = None) -> Path:
    """Where a run lies; trial: the values of the grid if it is part of a search."""
    if trial is None:
        return store / f"{branch.slug}-seed{seed}"
    values = ",".join(f"{key}={plain(value, key)}" for key, value in trial.items())
    return store / "search" / f"{branch.slug}-{safe(values)}-seed{seed}"
