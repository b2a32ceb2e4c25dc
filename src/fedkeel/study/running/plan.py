"""What a study runs, in which order, and what each branch came to.

A branch with a grid of values is searched first: `Trials` says which values to try next. Then the branch runs once per seed
with the chosen values. `StudyPlan.branch_runs` writes this order down as a generator of waves. The scheduler trains the runs
of each wave; `reading` only reads what is on disk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedkeel.runs.from_config as from_config
from fedkeel.engine.state import directory
from fedkeel.runs.config import RunConfig
from fedkeel.runs.saved_config import difference, differences
from fedkeel.study.python_objects import NAMES_ONLY, PythonObjects
from fedkeel.study.results.numbers import NOT_RUN, Outcome, better_is_less, finite, of_run, trial_score
from fedkeel.study.study import Branch, Study, path_of
from fedkeel.wording import value_text

Values = dict[str, Any]  # a value for every key of a grid


@dataclass(eq=False)
class StudyRun:
    """One run of a study: a branch with one seed, or a trial of its search."""

    branch: Branch
    config: RunConfig
    out: Path
    trial: Values | None = None  # what the search tries here; None: no trial, but a run of the results
    label: str = ""  # its name in trackers
    fresh: bool = False  # replace what its directory holds
    keep: bool = True  # keep the model and the checkpoint, too, when the run is complete
    trackers: dict[str, str] = field(default_factory=dict)
    objects: PythonObjects = NAMES_ONLY
    replaces: str = ""  # the older values of the grid, if this run replaces a run with those

    @property
    def name(self) -> str:
        if self.trial is None:
            return f"{self.branch.name} seed {self.config.seed}"
        return f"search {self.branch.name} {', '.join(f'{key} {z}' for key, z in self.trial.items())}"

    @property
    def turn(self) -> int:
        """Trials come first, then all first seeds, and so on. An interrupted study then has something of every method."""
        return 0 if self.trial is not None else 1 + self.branch.seeds.index(self.config.seed)

    def is_complete(self) -> bool:
        """Looks at the run's directory: is the run complete? Raises ValueError if the directory holds a different run.

        If only the keys of the grid differ, the search has chosen other values than last time. Then this marks the run as
        one that replaces the old one.
        """
        if self.fresh or not directory.holds_run(self.out):
            return False
        searched = self.branch.grid if self.trial is None else {}
        if (other := differences(self.out, self.config)) and other.keys() <= searched.keys():
            self.fresh = True
            self.replaces = ", ".join(f"{key} = {value_text(then, key)}" for key, (then, _) in other.items())
            return False
        if set(other) == {"rounds"} and other["rounds"][1] > other["rounds"][0]:
            # The study was extended. A run whose checkpoint was deleted at its end, or whose steps depend on the number of
            # rounds, starts again.
            then = self.config.changed(rounds=other["rounds"][0])
            self.fresh = directory.next_round(self.out) is None or not from_config.continues(then, self.config)
            return False
        if different := difference(self.out, self.config):
            if not self.objects:
                from_config.task(self.config)  # If a setting is wrong by itself, that error is more useful.
            raise ValueError(f"{different}; choose another --out, or --fresh to replace all runs")
        return directory.summary(self.out, self.config.rounds) is not None

    def outcome(self, error: str | None) -> Outcome:
        """What became of the run, from its directory. error: why it failed, if that is known."""
        method, seed, rounds = self.branch.method, self.config.seed, self.config.rounds
        if error is None and (summary := directory.summary(self.out, rounds)):
            made = {"memory_mb": summary.get("memory_mb"), "made_with": summary.get("made_with", {})}
            try:
                return Outcome(method, seed, directory.history(self.out, rounds), **made)
            except ValueError as damaged:
                error = str(damaged)
        return Outcome(method, seed, [], error or directory.why_failed(self.out) or NOT_RUN)

    def tidy(self) -> None:
        """Deletes the large files of a complete run, unless the study keeps them."""
        for name in () if self.keep else directory.HEAVY:
            (self.out / name).unlink(missing_ok=True)


@dataclass
class BranchResult:
    """What a branch came to."""

    branch: Branch
    chosen: Values = field(default_factory=dict)  # by the search
    outcomes: list[Outcome] = field(default_factory=list)  # one per seed
    trials: list[dict[str, Any]] = field(default_factory=list)  # values, score, error and whether they were chosen


Waves = Generator[list[StudyRun], list[Outcome], list[BranchResult]]


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study, with their settings and directories."""

    study: Study
    store: Path  # the directory of all runs
    fresh: bool = False
    trackers: dict[str, str] = field(default_factory=dict)
    objects: PythonObjects = NAMES_ONLY

    def branch_runs(self, group: Sequence[Branch], chosen_before: Values | None = None) -> Waves:
        """The runs of branches that share a search, wave by wave.

        Yields the runs of a wave. When all of them have ended, send their outcomes to get the next wave. At its end the
        generator returns the results.
        chosen_before: the choice as finished runs show it. `reading` uses it if some trials are not on disk.
        """
        chosen, trials = {}, []  # type: tuple[Values, list[dict[str, Any]]]
        if group[0].grid:
            chosen, trials = yield from self._search(group[0], chosen_before)
            if not chosen:
                nothing = {one.name: [Outcome(one.method, seed, [], NOT_RUN) for seed in one.seeds] for one in group}
                return [BranchResult(one, {}, nothing[one.name], trials) for one in group]
        wave = [
            self._run(branch, branch.at(chosen, seed, self.study.resplit), path_of(self.store, branch, seed))
            for branch in group
            for seed in branch.seeds
        ]
        outcomes = list(zip(wave, (yield wave), strict=True))
        return [BranchResult(one, chosen, [z for run, z in outcomes if run.branch is one], trials) for one in group]

    def _search(
        self, branch: Branch, chosen_before: Values | None
    ) -> Generator[list[StudyRun], list[Outcome], tuple[Values, list[dict[str, Any]]]]:
        """Runs the trials of a grid -> (chosen values, what every trial scored).

        The chosen values are {} if trials are missing, which only `reading` sees.
        """
        search = self.study.search
        settings = {"rounds": search.rounds, "evaluate_every": search.every}
        settings = {key: z for key, z in settings.items() if z is not None}
        trials, errors = Trials(branch.grid, search.way, search.metric), []  # type: tuple[Trials, list[str | None]]
        scored_by = search.metric
        for wave in trials.waves():
            outcomes = yield [
                self._run(
                    branch,
                    branch.at(values, search.seed, self.study.resplit, **settings),
                    path_of(self.store, branch, search.seed, values),
                    trial=values,
                )
                for values in wave
            ]
            for values, outcome in zip(wave, outcomes, strict=True):
                cost = branch.cost_of(values)
                scores = {} if outcome.error else of_run(outcome, branch.targets, self.study.target_on, cost)
                if scores:
                    scored_by = trial_score(search.metric, scores)
                    trials.less = better_is_less(scored_by)
                trials.scores.append((values, finite(scores.get(scored_by))))
                errors.append(outcome.error)
            if NOT_RUN in errors and chosen_before is None:
                break  # The next wave depends on the scores of this one.
        chosen = (chosen_before or {}) if NOT_RUN in errors else (trials.best() or trials.middle())
        return chosen, [
            {**values, "score": score, "error": error, "chosen": values == chosen}
            for (values, score), error in zip(trials.scores, errors, strict=True)
        ]

    def _run(self, branch: Branch, config: RunConfig, out: Path, trial: Values | None = None) -> StudyRun:
        # Trackers show the runs of several studies side by side, so a label begins with the name of the study's directory.
        label = "-".join(out.absolute().relative_to(self.store.absolute().parent).parts)
        keep = self.study.keep and trial is None
        return StudyRun(branch, config, out, trial, label, self.fresh, keep, self.trackers, self.objects)

    def clear(self) -> None:
        """Removes all runs and trials at once. After Ctrl-C, the same command without --fresh then finds no old run."""
        paths = [path_of(self.store, branch, seed) for branch in self.study.branches for seed in branch.seeds]
        for first in [group[0] for group in self.study.groups() if group[0].grid]:
            paths += [path_of(self.store, first, self.study.search.seed, values) for values in combinations(first.grid)]
        for path in paths:
            if directory.holds_run(path):
                directory.clear(path)
            directory.forget_failure(path)


def size(study: Study) -> tuple[int, int]:
    """(runs, rounds) of the whole study, trials included."""
    total = rounds = 0
    for group in study.groups():
        if group[0].grid:
            count = Trials(group[0].grid, study.search.way, study.search.metric).count()
            total += count
            rounds += count * (study.search.rounds or group[0].config.rounds)
        total += sum(len(branch.seeds) for branch in group)
        rounds += sum(len(branch.seeds) * branch.config.rounds for branch in group)
    return total, rounds


# Searches -------------------------------------------------------------------------------------------------------------


class Trials:
    """The trials of one search. `waves` yields values to try; the caller adds their scores before the next wave."""

    def __init__(self, grid: Mapping[str, Sequence[Any]], way: str, metric: str) -> None:
        self.grid, self.way, self.less = dict(grid), way, better_is_less(metric)
        self.scores: list[tuple[Values, float | None]] = []  # None: the trial failed, or never reached the target

    def waves(self) -> Iterator[list[Values]]:
        """Trials that can run side by side, none of them twice. After the last wave, `best` is the choice."""
        if self.way == "grid":
            yield combinations(self.grid)
            return
        at = self.middle()
        for key, values in self.grid.items():
            done = [tried for tried, _ in self.scores]
            new = [at | {key: value} for value in values if at | {key: value} not in done]
            if new:
                yield new
            at = self.best() or at

    def count(self) -> int:
        """How many trials there will be."""
        sizes = [len(values) for values in self.grid.values()]
        return math.prod(sizes) if self.way == "grid" else sum(sizes) - len(sizes) + 1

    def middle(self) -> Values:
        return {key: values[len(values) // 2] for key, values in self.grid.items()}

    def best(self) -> Values | None:
        """The values with the best score so far, the first of equals. None if no trial has a finite score."""
        scored = [(values, score) for values, score in self.scores if score is not None and math.isfinite(score)]
        sign = 1 if self.less else -1
        return min(scored, key=lambda pair: sign * pair[1])[0] if scored else None


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
