"""The tuning of a branch on validation data: the same number of rounds for every method, longer trials for its best values.

`choose` tunes its candidates with this, and so does a study with `[search] way = "fair"`. Trials never see the test data.
A search that was killed makes the same proposals again, finds their runs on disk, and comes to the same values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedkeel.engine.state import directory
from fedkeel.runs.saved_config import difference, differences
from fedkeel.study.results.numbers import Outcome, Row
from fedkeel.study.running.plan import BranchResult, StudyRun
from fedkeel.study.running.proposals import distributions, import_optuna, proposals, ranking
from fedkeel.study.running.search import Values
from fedkeel.study.running.space import Point, Space
from fedkeel.study.study import Branch

SCORES = {"val_accuracy": False, "val_loss": True}  # column -> is less better?


@dataclass(frozen=True)
class Spending:
    """How many rounds every method spends on its tuning, and on what."""

    unit: int  # rounds of a short trial
    explore: int  # short trials of a method
    longer: tuple[tuple[int, int], ...] = ()  # (how many trials, their new length in rounds), one stage after the other

    @property
    def rounds(self) -> int:
        spent, before = self.explore * self.unit, self.unit
        for count, length in self.longer:
            spent += count * (length - before)
            before = length
        return spent


@dataclass
class Trial:
    point: Point
    values: Values
    seed: int
    scores: dict[int, float | None] = field(default_factory=dict)  # rounds -> validation score; None: it failed
    error: str | None = None

    @property
    def rounds(self) -> int:
        return max(self.scores, default=0)


@dataclass(eq=False)
class TrialRun(StudyRun):
    """A trial. Its run may be longer already, from an earlier call; then its first rounds are read."""

    has_test: bool = False

    def is_complete(self) -> bool:
        if self.fresh or not directory.holds_run(self.out):
            return False
        if differences(self.out, self.config).keys() - {"rounds"}:
            raise ValueError(f"{difference(self.out, self.config)}; choose another --out, or --fresh to replace all runs")
        rows = self._rows()
        return len(rows) >= self.config.rounds and any(rows[self.config.rounds - 1].get(key) is not None for key in SCORES)

    def outcome(self, error: str | None) -> Outcome:
        rows = [] if error else self._rows()[: self.config.rounds]
        return Outcome(self.branch.method, self.config.seed, rows, error)

    def _rows(self) -> list[Row]:
        try:
            return directory.history(self.out)
        except ValueError:
            return []


MakeRun = Callable[[Trial, int], TrialRun]  # (trial, its rounds) -> its run


def tune(
    branch: Branch, space: Space, spending: Spending, seed: int, make_run: MakeRun
) -> Generator[list[StudyRun], list[Outcome], tuple[Values, list[Row]]]:
    """Yields the runs of trials, wave by wave. Returns the best values, and what every trial scored."""
    trials: list[Trial] = []
    search = proposals(space, spending.explore, seed, branch.method)
    wave = next(search, None)
    while wave is not None:
        new: list[Trial] = []
        for point in wave:
            values = space.values(point)
            again = sum(one.values == values for one in trials + new)  # the same values with another seed
            new.append(Trial(point, values, seed + again))
        yield from _train(new, spending.unit, make_run)
        trials += new
        try:
            wave = search.send([_cost(one.scores[spending.unit]) for one in new])
        except StopIteration:
            wave = None
    before, kept = spending.unit, trials
    for count, length in spending.longer:
        kept = [one for one in _ranked(kept, before, space)[:count] if one.scores[before] is not None]
        yield from _train(kept, length, make_run)
        before = length
    good = [one for one in kept if one.scores.get(before) is not None]
    best = next(iter(_ranked(good, before, space)), None)
    for one in trials:  # The large files were needed to make trials longer.
        for name in directory.HEAVY:
            (make_run(one, spending.unit).out / name).unlink(missing_ok=True)
    edges = [] if best is None else space.edges(best.point, [one.point for one in trials])
    return best.values if best else {}, [_told(one, edges if one is best else None) for one in trials]


def _train(trials: list[Trial], rounds: int, make_run: MakeRun) -> Generator[list[StudyRun], list[Outcome], None]:
    if not trials:
        return
    runs: list[StudyRun] = [make_run(one, rounds) for one in trials]
    for one, outcome in zip(trials, (yield runs), strict=True):
        one.scores[rounds], one.error = score_of(outcome.history), outcome.error


def _ranked(trials: list[Trial], rounds: int, space: Space) -> list[Trial]:
    """The best first. Values that were tried with several seeds count by their mean, and all their trials stand together."""
    order = ranking(space, [(one.point, _cost(one.scores[rounds])) for one in trials])
    return sorted(trials, key=lambda one: order.index(one.point))


def score_of(history: list[Row]) -> float | None:
    """The validation score of the last round: an accuracy, or minus a loss. None if there is none, or it is not finite."""
    for column, less in SCORES.items():
        value = history[-1].get(column) if history else None
        if value is not None:
            return (-value if less else value) if math.isfinite(value) else None
    return None


def _cost(score: float | None) -> float:
    """What is minimised. A trial that failed is worse than any other."""
    return math.inf if score is None else -score


def _told(trial: Trial, edges: list[str] | None) -> Row:
    """A trial for results.json. edges: of the chosen one; None: it was not chosen."""
    return trial.values | {
        "score": trial.scores.get(trial.rounds),
        "error": trial.error,
        "chosen": edges is not None,
        "edges": edges or [],
        "trial": {
            "seed": trial.seed,
            "rounds": trial.rounds,
            "scores": {str(rounds): score for rounds, score in trial.scores.items()},
            "point": trial.point,
        },
    }


def write_journal(found: list[BranchResult], spaces: Mapping[str, Space], path: Path) -> None:
    """All trials as Optuna's studies, one per branch, in a journal that its dashboard can open."""
    optuna = import_optuna()
    path.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    states = optuna.trial.TrialState
    longest = max((trial["trial"]["rounds"] for one in found for trial in one.trials), default=0)
    for one in found:
        space = spaces[one.branch.method]
        study = optuna.create_study(storage=storage, study_name=one.branch.method, direction="maximize")
        for trial in one.trials:
            about = trial["trial"]
            scores = {int(rounds): z for rounds, z in about["scores"].items() if z is not None}
            state = states.COMPLETE if about["rounds"] == longest else states.PRUNED
            state = states.FAIL if trial["score"] is None else state
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial["score"],
                    params=about["point"],
                    distributions=distributions(space),
                    intermediate_values=scores,
                    user_attrs=space.values(about["point"]) | {"seed": about["seed"]},
                )
            )
