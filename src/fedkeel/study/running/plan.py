"""What a study runs, in which order, and what each branch came to.

A branch with a grid of values is searched first: `Trials` says which values to try next, or with `way = "fair"` the module
`tuning`. Then the branch runs once per seed with the chosen values. `StudyPlan.branch_runs` writes this order down as a
generator of waves. The scheduler trains the runs of each wave; `reading` only reads what is on disk.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedkeel.runs.from_config as from_config
from fedkeel.engine.state import directory
from fedkeel.files import guarded, write_atomically
from fedkeel.runs.config import RunConfig
from fedkeel.runs.saved_config import difference, differences
from fedkeel.study.python_objects import NAMES_ONLY, PythonObjects
from fedkeel.study.results.numbers import NOT_RUN, Outcome, better_is_less, finite, of_run, trial_score
from fedkeel.study.running.search import Trials, Values, combinations, edges_of
from fedkeel.study.running.study_data import StudyData
from fedkeel.study.study import Branch, Study, path_of
from fedkeel.wording import value_text

if TYPE_CHECKING:
    from fedkeel.study.running.tuning import Spending, Trial, TrialRun


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
    searched: Collection[str] = ()  # what a search chose for this run
    has_test: bool = True  # Does it see the test samples?

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
        if (other := differences(self.out, self.config)) and all(key in self.searched for key in other):
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
            if self.objects == NAMES_ONLY:
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
    trials: list[dict[str, Any]] = field(default_factory=list)  # values, score, error, whether they were chosen, its edges


Waves = Generator[list[StudyRun], list[Outcome], list[BranchResult]]


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study, with their settings and directories."""

    study: Study
    store: Path  # the directory of all runs
    fresh: bool = False
    trackers: dict[str, str] = field(default_factory=dict)
    objects: PythonObjects = NAMES_ONLY
    only_reads: bool = False  # nothing will be run: read what is there

    @cached_property
    def data(self) -> StudyData:
        return StudyData(self.objects)

    def branch_runs(self, group: Sequence[Branch], chosen_before: Values | None = None) -> Waves:
        """The runs of branches that share a search, wave by wave.

        Yields the runs of a wave. When all of them have ended, send their outcomes to get the next wave. At its end the
        generator returns the results.
        chosen_before: the choice as finished runs show it. `reading` uses it if some trials are not on disk.
        """
        chosen, trials = {}, []  # type: tuple[Values, list[dict[str, Any]]]
        if self.study.is_searched(group[0]):
            fair = self.study.search.way == "fair"
            chosen, trials = yield from (self._fair_search(group[0]) if fair else self._search(group[0], chosen_before))
            if not trials or (not chosen and not fair):
                nothing = {one.name: [Outcome(one.method, seed, [], NOT_RUN) for seed in one.seeds] for one in group}
                return [BranchResult(one, {}, nothing[one.name], trials) for one in group]
        wave = [
            self._run(
                branch, branch.at(chosen, seed, self.study.resplit), path_of(self.store, branch, seed), searched=chosen
            )
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
        edges = edges_of(chosen, branch.grid)
        return chosen, [
            {
                **values,
                "score": score,
                "error": error,
                "chosen": values == chosen,
                "edges": edges if values == chosen else [],
            }
            for (values, score), error in zip(trials.scores, errors, strict=True)
        ]

    def _fair_search(self, branch: Branch) -> Generator[list[StudyRun], list[Outcome], tuple[Values, list[dict[str, Any]]]]:
        """As `_search`, with as many rounds for this method as for every other one, on validation data.

        The result is kept in a file: `reading` has no data from which the trials could be derived again.
        """
        kept = self.store / "search" / f"{branch.slug}.json"
        if self.only_reads:
            known = json.loads(kept.read_text()) if kept.exists() else {"chosen": {}, "trials": []}
            return known["chosen"], known["trials"]
        from fedkeel.study.running.space import space_of
        from fedkeel.study.running.tuning import tune

        search, config = self.study.search, branch.at({key: z[0] for key, z in branch.grid.items()}, branch.seeds[0], False)
        spending = fair_spending(self.study, branch)
        how = {"evaluate_every": spending.unit, "validation": config.validation or search.validation}

        def make_run(trial: Trial, rounds: int) -> TrialRun:
            from fedkeel.study.running.tuning import TrialRun

            settings = branch.at(trial.values, trial.seed, self.study.resplit, rounds=rounds, **how)
            out = path_of(self.store, branch, trial.seed, trial.values)
            return TrialRun(branch, settings, out, trial.values, out.name, self.fresh, False, self.trackers, self.objects)

        chosen, trials = yield from tune(branch, space_of(branch, self.data.of(config)), spending, search.seed, make_run)
        guarded(kept.parent, lambda: kept.parent.mkdir(parents=True, exist_ok=True))
        write_atomically(kept, json.dumps(finite({"chosen": chosen, "trials": trials}), allow_nan=False).encode())
        return chosen, trials

    def _run(
        self, branch: Branch, config: RunConfig, out: Path, trial: Values | None = None, searched: Collection[str] = ()
    ) -> StudyRun:
        # Trackers show the runs of several studies side by side, so a label begins with the name of the study's directory.
        label = "-".join(out.absolute().relative_to(self.store.absolute().parent).parts)
        keep = self.study.keep and trial is None
        return StudyRun(branch, config, out, trial, label, self.fresh, keep, self.trackers, self.objects, searched=searched)

    def clear(self) -> None:
        """Removes all runs and trials at once. After Ctrl-C, the same command without --fresh then finds no old run."""
        paths = [path_of(self.store, branch, seed) for branch in self.study.branches for seed in branch.seeds]
        for first in [group[0] for group in self.study.groups() if self.study.is_searched(group[0])]:
            if self.study.search.way == "fair":
                kept = self.store / "search" / f"{first.slug}.json"
                kept.unlink(missing_ok=True)
                paths += kept.parent.glob(f"{glob.escape(kept.stem)}-*-seed*")
            else:
                paths += [path_of(self.store, first, self.study.search.seed, values) for values in combinations(first.grid)]
        for path in paths:
            if directory.holds_run(path):
                directory.clear(path)
            directory.forget_failure(path)


def size(study: Study) -> tuple[int, int]:
    """(runs, rounds) of the whole study, trials included."""
    total = rounds = 0
    for group in study.groups():
        if study.is_searched(group[0]) and study.search.way == "fair":
            spending = fair_spending(study, group[0])
            total += spending.explore
            rounds += spending.rounds
        elif group[0].grid:
            count = Trials(group[0].grid, study.search.way, study.search.metric).count()
            total += count
            rounds += count * (study.search.rounds or group[0].config.rounds)
        total += sum(len(branch.seeds) for branch in group)
        rounds += sum(len(branch.seeds) * branch.config.rounds for branch in group)
    return total, rounds


def fair_spending(study: Study, branch: Branch) -> Spending:
    """What every method spends on its search."""
    from fedkeel.study.running.tuning import Spending

    return Spending(study.search.rounds or branch.config.rounds, study.search.trials)
