"""What a study has to run: trials first, then all seeds with what was chosen; and what became of every run."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkeel.engine.state import directory
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig
from fedkeel.runs.saved_config import difference, differences
from fedkeel.study.names import plain
from fedkeel.study.results.numbers import NOT_RUN, Outcome, finite, of_run
from fedkeel.study.running.search import Trials
from fedkeel.study.study import Branch, Study, path_of


@dataclass(eq=False)
class Job:
    """One run of a study."""

    name: str
    config: RunConfig
    out: Path
    label: str = ""  # by which trackers know it
    fresh: bool = False  # what its directory holds is replaced
    keep: bool = True
    trackers: dict[str, str] = field(default_factory=dict)
    process: Any = None
    replaces: str = ""  # values of a grid, of a run that gives way to it

    def tidy(self) -> None:
        """Leaves the numbers of a complete run, and the rest only where it is to be kept."""
        for name in () if self.keep else directory.HEAVY:
            (self.out / name).unlink(missing_ok=True)


@dataclass
class Found:
    """What a branch of the study came to."""

    branch: Branch
    chosen: dict[str, Any] = field(default_factory=dict)  # values of its grid
    outcomes: list[Outcome] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)  # of the search: values and score


@dataclass
class Asked:
    """Runs that must be complete before a branch can go on."""

    jobs: list[Job]
    branches: list[Branch]
    seeds: list[int]
    search: bool


def steps_of(
    study: Study,
    group: Sequence[Branch],
    store: Path,
    fresh: bool,
    trackers: dict[str, str],
    before: dict[str, Any] | None = None,
) -> Generator[Asked, Any, list[Found]]:
    """The runs of branches that share a search: yields what must be complete, is sent the outcomes, returns the findings.

    before: what the search is known to have chosen.
    """
    first, chosen, trials = group[0], {}, []
    if first.grid:
        chosen, trials = yield from _search(study, first, store, fresh, trackers, before)
        if not chosen:
            return [Found(one, {}, [Outcome(one.method, z, [], NOT_RUN) for z in one.seeds], trials) for one in group]
    jobs, branches, seeds = [], [], []
    for branch, seed in [(one, seed) for one in group for seed in one.seeds]:
        config = branch.at(chosen, seed, study.resplit)
        out = path_of(store, branch, seed)
        jobs.append(Job(f"{branch.name} seed {seed}", config, out, _label(out, store), fresh, study.keep, trackers))
        branches.append(branch)
        seeds.append(seed)
    outcomes = yield Asked(jobs, branches, seeds, search=False)
    return [
        Found(branch, chosen, [z for z, b in zip(outcomes, branches, strict=True) if b is branch], trials)
        for branch in group
    ]


def _search(
    study: Study, branch: Branch, store: Path, fresh: bool, trackers: dict[str, str], before: dict[str, Any] | None
) -> Generator[Asked, Any, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Runs the trials of a grid -> (chosen values, what every trial scored); {} if some are still to come."""
    plan = study.search
    less = {key: z for key, z in (("rounds", plan.rounds), ("evaluate_every", plan.every)) if z is not None}
    trials, errors = Trials(branch.grid, plan.way, plan.metric), []  # type: tuple[Trials, list[str | None]]
    for wave in trials.waves():
        jobs = []
        for values in wave:
            config = branch.at(values, plan.seed, study.resplit, **less)
            name = f"search {branch.name} {', '.join(f'{key} {z}' for key, z in values.items())}"
            out = path_of(store, branch, plan.seed, values)
            jobs.append(Job(name, config, out, _label(out, store), fresh, False, trackers))
        outcomes = yield Asked(jobs, [branch] * len(jobs), [plan.seed] * len(jobs), search=True)
        for values, outcome in zip(wave, outcomes, strict=True):
            scores = {} if outcome.error else of_run(outcome, branch.targets, study.target_on, branch.cost_of(values))
            trials.scores.append((values, finite(scores.get(plan.metric))))
            errors.append(outcome.error)
        if NOT_RUN in errors and before is None:  # the next ones depend on these
            break
    middle = {key: values[len(values) // 2] for key, values in branch.grid.items()}
    chosen = before or {} if NOT_RUN in errors else trials.best() or middle
    return chosen, [
        {**values, "score": score, "error": error, "chosen": values == chosen}
        for (values, score), error in zip(trials.scores, errors, strict=True)
    ]


def _label(out: Path, store: Path) -> str:
    """How trackers call a run: by its study, case, method and seed."""
    return "-".join(out.absolute().relative_to(store.absolute().parent).parts)


def size(study: Study) -> tuple[int, int]:
    """(runs, rounds) of the whole study."""
    total = rounds = 0
    for group in study.groups():
        if group[0].grid:
            count = Trials(group[0].grid, study.search.way, study.search.metric).count()
            total += count
            rounds += count * (study.search.rounds or group[0].config.rounds)
        total += sum(len(branch.seeds) for branch in group)
        rounds += sum(len(branch.seeds) * branch.config.rounds for branch in group)
    return total, rounds


def clear(study: Study, store: Path) -> None:
    """Removes all runs and trials of a study at once, so that who goes on after Ctrl-C finds none of them."""
    paths = [path_of(store, branch, seed) for branch in study.branches for seed in branch.seeds]
    for first in [group[0] for group in study.groups() if group[0].grid]:
        points = (dict(zip(first.grid, point, strict=True)) for point in itertools.product(*first.grid.values()))
        paths += [path_of(store, first, study.search.seed, point) for point in points]
    for path in paths:
        if directory.holds_run(path):
            directory.clear(path)
        directory.mark_failed(path, None)


def is_complete(job: Job, grid: Collection[str] = ()) -> bool:
    """Is the run there already? An error if the directory holds another one; if that has only other values of a grid, from
    which the search then chose otherwise, it gives way."""
    if job.fresh or not directory.holds_run(job.out):
        return False
    if (other := differences(job.out, job.config)) and other.keys() <= set(grid):
        job.fresh, job.replaces = True, ", ".join(f"{key} = {plain(then, key)}" for key, (then, _) in other.items())
        return False
    if different := difference(job.out, job.config):
        from_config.task(job.config)  # a setting that is wrong by itself is the better message
        raise ValueError(f"{different}; choose another --out, or --fresh to replace all runs")
    return directory.summary(job.out, job.config.rounds) is not None


def outcome_of(job: Job, branch: Branch, seed: int, error: str | None) -> Outcome:
    """What became of a run, from its directory. error: what is known to be wrong with it."""
    if error is None and (found := directory.summary(job.out, job.config.rounds)):
        told = {"memory_mb": found.get("memory_mb"), "made_with": found.get("made_with", {})}
        try:
            return Outcome(branch.method, seed, directory.history(job.out, job.config.rounds), **told)
        except ValueError as damaged:
            error = str(damaged)
    return Outcome(branch.method, seed, [], error or directory.why_failed(job.out) or NOT_RUN)
