"""The tuning of the candidates: short trials, grids that grow past an edge, successive halving; all on validation data.

Every candidate spends the same number of rounds (`budget`). Trials never see the test data. Optuna proposes the trials that
follow the grid of step sizes, and its journal keeps all trials. Proposals depend on the seed and the scores only. So a
call that was killed makes the same proposals again, finds their runs on disk, and comes to the same answer.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from fedkeel.core.hyperparameters import fits
from fedkeel.engine.state import directory
from fedkeel.runs.saved_config import difference, differences
from fedkeel.study.choosing.budget import Budget
from fedkeel.study.results.numbers import Outcome, Row
from fedkeel.study.running.plan import BranchResult, StudyPlan, StudyRun, Values, Waves
from fedkeel.study.study import Branch
from fedkeel.wording import file_name, value_text

SEED = 1000  # added to the seed of the study: no run that counts has it
DECADE = 4  # Step sizes are the default times 10^(k / 4) for whole k.
FARTHEST = 4 * DECADE  # Step sizes beyond four decades from the default make no sense.
AT_ONCE = 4  # trials that Optuna proposes together
SCORES = {"val_accuracy": False, "val_loss": True}  # column -> is less better?


@dataclass(frozen=True)
class Space:
    """What is tuned of a method. A point is {"step": k, name of a choice: value}."""

    step: str = ""  # the hyper-parameter of the step size; "": the method has none, or the user gave it
    default: float = 0.0  # the step size at k = 0
    allowed: tuple[int, int] = (0, 0)  # the least and the largest k
    choices: dict[str, list[Any]] = field(default_factory=dict)  # other hyper-parameters and their values, the default first
    fixed: Values = field(default_factory=dict)  # values that would change with the number of rounds

    def values(self, point: Mapping[str, Any]) -> Values:
        found = {self.step: self.size(point["step"])} if self.step else {}
        return found | {key: point[key] for key in self.choices} | self.fixed

    def size(self, k: int) -> float:
        return float(f"{self.default * 10 ** (k / DECADE):.2g}")


def space_of(branch: Branch, method: Any, twice_as_long: Any) -> Space:
    """method: planned for the rounds of the study.  twice_as_long: planned for twice as many."""
    given = branch.config.hyperparameters
    about = {one.name: one for one in fields(method)}
    fixed = {key: getattr(method, key) for key in about if getattr(method, key) != getattr(twice_as_long, key)}
    fixed = {key: z for key, z in fixed.items() if key not in given}
    choices = {key: list(z) for key, z in branch.grid.items() if key in about}
    for key, one in about.items():
        usual, grid = getattr(method, key), one.metadata["grid"]
        if key not in ("lr", *given, *choices, *fixed) and len(grid) > 1 and isinstance(usual, int | float):
            choices[key] = [usual, *(z for z in grid if z != usual and fits(one, z))]
    usual = getattr(method, "lr", None)
    if "lr" in (*given, *choices) or not isinstance(usual, float) or not usual > 0:
        return Space(choices=choices, fixed=fixed)
    fixed.pop("lr", None)
    made = Space("lr", usual, (0, 0), choices, fixed)
    ends = [k for k in range(-FARTHEST, FARTHEST + 1) if fits(about["lr"], made.size(k))]
    return Space("lr", usual, (ends[0], ends[-1]), choices, fixed)


@dataclass
class Trial:
    point: dict[str, Any]
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

    def is_complete(self) -> bool:
        if not directory.holds_run(self.out):
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


@dataclass(frozen=True)
class TuningPlan(StudyPlan):
    """The trials of all candidates. Every branch of the study is a candidate."""

    budget: Budget | None = None
    spaces: Mapping[str, Space] = field(default_factory=dict)
    has_test: ClassVar[bool] = False  # The data of trials have no test samples.

    def branch_runs(self, group: Any, chosen_before: Values | None = None) -> Waves:
        (branch,), budget = group, self.budget
        assert budget is not None
        space, first = self.spaces[branch.method], branch.seeds[0]
        trials: list[Trial] = []
        search = proposals(space, budget.explore, first, branch.method)
        wave = next(search, None)
        while wave is not None:
            new: list[Trial] = []
            for point in wave:
                values = space.values(point)
                again = sum(one.values == values for one in trials + new)  # the same values with another seed
                new.append(Trial(point, values, first + again))
            yield from self._train(branch, new, budget.unit)
            trials += new
            try:
                wave = search.send([_cost(one.scores[budget.unit]) for one in new])
            except StopIteration:
                wave = None
        before, kept = budget.unit, trials
        for count, length in budget.longer:
            kept = sorted(kept, key=lambda one: (_cost(one.scores[before]), abs(one.point.get("step", 0))))[:count]
            kept = [one for one in kept if one.scores[before] is not None]
            yield from self._train(branch, kept, length)
            before = length
        good = [one for one in kept if one.scores.get(before) is not None]
        best = min(good, key=lambda one: (_cost(one.scores[before]), abs(one.point.get("step", 0))), default=None)
        for one in trials:  # The large files were needed to make trials longer.
            for name in directory.HEAVY:
                (self._place(branch, one) / name).unlink(missing_ok=True)
        return [BranchResult(branch, best.values if best else {}, trials=[_told(one, one is best) for one in trials])]

    def _train(self, branch: Branch, trials: list[Trial], rounds: int) -> Generator[list[StudyRun], list[Outcome], None]:
        assert self.budget is not None
        if not trials:
            return
        runs: list[StudyRun] = []
        for one in trials:
            how = {"rounds": rounds, "evaluate_every": self.budget.unit}
            config = branch.at(one.values, one.seed, self.study.resplit, **how)
            out = self._place(branch, one)
            runs.append(TrialRun(branch, config, out, one.values, out.name, keep=True, objects=self.objects))
        for one, outcome in zip(trials, (yield runs), strict=True):
            one.scores[rounds], one.error = score_of(outcome.history), outcome.error

    def _place(self, branch: Branch, trial: Trial) -> Path:
        values = ",".join(f"{key}={value_text(z, key)}" for key, z in trial.values.items()) or "defaults"
        return self.store / file_name(branch.method) / f"{file_name(values)}-seed{trial.seed}"

    def clear(self) -> None:
        import shutil

        shutil.rmtree(self.store, ignore_errors=True)


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


def _told(trial: Trial, chosen: bool) -> Row:
    last = trial.scores.get(trial.rounds)
    return trial.values | {
        "score": last,
        "error": trial.error,
        "chosen": chosen,
        "seed": trial.seed,
        "rounds": trial.rounds,
        "scores": {str(rounds): score for rounds, score in trial.scores.items()},
        "point": trial.point,
    }


# Which values to try ---


def proposals(space: Space, count: int, seed: int, name: str) -> Generator[list[dict[str, Any]], list[float], None]:
    """Points to try, wave by wave, `count` in all. Send the costs of a wave (inf: failed) to get the next one.

    First step sizes a decade apart, farther while the best one is at an edge; then half steps beside the best one. The
    rest is proposed by Optuna, for all hyper-parameters together.
    """
    import numpy as np

    usual = {key: values[0] for key, values in space.choices.items()}
    tried: dict[int, float] = {}
    sampler = _sampler(int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest()))
    left = count
    while space.step and left:
        wave = _next_steps(tried, space.allowed)[:left]
        if not wave:
            break
        points = [{"step": k} | usual for k in wave]
        costs = yield points
        tried |= dict(zip(wave, costs, strict=True))
        left -= len(wave)
        _tell(sampler, space, points, costs)
    while left:
        near = min(tried, key=lambda k: (tried[k], abs(k)), default=0)
        points = _ask(sampler, space, near, min(left, AT_ONCE))
        costs = yield [{key: z.item() if isinstance(z, np.generic) else z for key, z in one.items()} for one in points]
        left -= len(points)
        _tell(sampler, space, points, costs)


def _next_steps(tried: Mapping[int, float], allowed: tuple[int, int]) -> list[int]:
    """The step sizes to try next, as exponents. [] if the best one has near neighbours on both sides."""
    if not tried:
        return [k for k in (-DECADE, 0, DECADE) if allowed[0] <= k <= allowed[1]]
    best = min(tried, key=lambda k: (tried[k], abs(k)) if math.isfinite(tried[k]) else (math.inf, k))
    if best == min(tried) and best - DECADE >= allowed[0]:
        return [best - DECADE]
    if best == max(tried) and best + DECADE <= allowed[1] and math.isfinite(tried[best]):
        return [best + DECADE]
    half = DECADE // 2
    return [k for k in (best - half, best + half) if k not in tried and allowed[0] <= k <= allowed[1]]


def _sampler(seed: int) -> Any:
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls some of its options experimental.
        return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=3, constant_liar=True))


def _distributions(space: Space, low: int, high: int) -> dict[str, Any]:
    optuna = import_optuna()
    step = {"step": optuna.distributions.IntDistribution(low, high)} if space.step else {}
    others = {key: optuna.distributions.CategoricalDistribution(values) for key, values in space.choices.items()}
    return step | others


def _tell(sampler: Any, space: Space, points: list[dict[str, Any]], costs: list[float]) -> None:
    optuna = import_optuna()
    about = _distributions(space, *space.allowed)
    for point, cost in zip(points, costs, strict=True):
        state = optuna.trial.TrialState.COMPLETE if math.isfinite(cost) else optuna.trial.TrialState.FAIL
        value = cost if math.isfinite(cost) else None
        sampler.add_trial(optuna.trial.create_trial(state=state, value=value, params=point, distributions=about))


def _ask(sampler: Any, space: Space, near: int, count: int) -> list[dict[str, Any]]:
    low, high = max(space.allowed[0], near - DECADE), min(space.allowed[1], near + DECADE)
    asked = [sampler.ask(_distributions(space, low, high)) for _ in range(count)]
    points: list[dict[str, Any]] = []
    known = [one.params for one in sampler.trials if one.state.name != "RUNNING" and one.params]
    for one in asked:  # A point that was tried already becomes its nearest neighbour that was not.
        point = dict(one.params)
        steps = range(low, high + 1) if space.step else ()
        nearby = [k for _, k in sorted((abs(k - point["step"]), k) for k in steps)]
        free = [point | {"step": k} for k in nearby if point | {"step": k} not in known + points]
        points.append(free[0] if free else point)
    for one in asked:  # `_tell` adds it again, with its score.
        sampler.tell(one, state=import_optuna().trial.TrialState.FAIL)
    return points


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError("choose needs Optuna: pip install 'fedkeel[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def write_journal(found: list[BranchResult], spaces: Mapping[str, Space], path: Path) -> None:
    """All trials as Optuna's studies, one per method, in a journal that its dashboard can open."""
    optuna = import_optuna()
    path.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    states = optuna.trial.TrialState
    longest = max((trial["rounds"] for one in found for trial in one.trials), default=0)
    for one in found:
        space = spaces[one.branch.method]
        study = optuna.create_study(storage=storage, study_name=one.branch.method, direction="maximize")
        for trial in one.trials:
            scores = {int(rounds): z for rounds, z in trial["scores"].items() if z is not None}
            state = (
                states.FAIL if trial["score"] is None else states.COMPLETE if trial["rounds"] == longest else states.PRUNED
            )
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial["score"],
                    params=trial["point"],
                    distributions=_distributions(space, *space.allowed),
                    intermediate_values=scores,
                    user_attrs={key: trial[key] for key in (*space.values(trial["point"]), "seed")},
                )
            )
