"""Which values a search tries next.

1. All combinations of the grids that the user gave, if there are trials enough. Otherwise the grid of the step size.
2. Neighbours of the best point, one hyper-parameter after the other, until the best point has been beaten on no side. A
   grid grows in this way past an edge. The step size comes first: decades, then half decades.
3. What is left is proposed by Optuna for all hyper-parameters together. A better point that it finds goes to step 2.

Proposals depend on the seed and the scores only. So a search that was killed makes the same proposals again.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
import warnings
from collections.abc import Generator
from typing import Any

from fedkeel.study.running.space import Ladder, Point, Space

AT_ONCE = 4  # trials that Optuna proposes together
Tried = list[tuple[Point, float]]  # points with their costs; inf: the trial failed


def proposals(space: Space, count: int, seed: int, name: str) -> Generator[list[Point], list[float], None]:
    """Points to try, wave by wave, `count` in all. Send the costs of a wave (inf: failed) to get the next one."""
    sampler = _sampler(int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest()))
    tried: Tried = []
    while (left := count - len(tried)) > 0:
        wave = _beside_best(space, tried) if tried else _first(space, count)
        points = wave[:left] or _ask(sampler, space, tried, min(left, AT_ONCE))
        costs = yield points
        tried += zip(points, costs, strict=True)
        _tell(sampler, space, points, costs)


def ranking(space: Space, tried: Tried) -> list[Point]:
    """All points that were tried, the best first. A point that was tried several times counts by its mean cost.

    Of equal points, the one nearest to the defaults is better. Among points that failed, the least step size comes first.
    """
    costs: dict[tuple[int, ...], list[float]] = {}
    for point, cost in tried:
        costs.setdefault(tuple(point.values()), []).append(cost)

    def order(rungs: tuple[int, ...]) -> tuple[float, float]:
        mean = statistics.fmean(costs[rungs])
        away = sum(abs(k - start) for k, start in zip(rungs, space.start.values(), strict=True))
        return mean, away if math.isfinite(mean) else next(iter(rungs), 0)

    return [dict(zip(space.ladders, rungs, strict=True)) for rungs in sorted(costs, key=order)]


def _first(space: Space, count: int) -> list[Point]:
    """Where a search begins."""
    grids = {key: space.ladders[key].first for key in space.given}
    if not grids or math.prod(map(len, grids.values())) > count:
        grids = {key: ladder.first for key, ladder in list(space.ladders.items())[:1]}
    found = [space.start | dict(zip(grids, point, strict=True)) for point in itertools.product(*grids.values())]
    return sorted(found, key=lambda point: point != space.start)  # the defaults must be among few trials


def _beside_best(space: Space, tried: Tried) -> list[Point]:
    """Neighbours of the best point along the first hyper-parameter that lacks some. [] if none does."""
    best = ranking(space, tried)[0]
    points = [point for point, _ in tried]
    failed = all(math.isinf(cost) for _, cost in tried)
    for key, ladder in space.ladders.items():
        line = space.line(key, best, points)
        for new in _missing(ladder, best[key], line):
            wave = [best | {key: k} for k in new if not (failed and k > best[key])]  # Larger steps would fail, too.
            if wave:
                return wave
    return []


def _missing(ladder: Ladder, k: int, line: list[int]) -> list[list[int]]:
    """Rungs to try beside rung k, for every stride. line: the rungs that were tried."""
    if not ladder.ordered:
        return [[i for i in range(len(ladder.values)) if i not in line]]
    found = []
    for stride in ladder.strides:
        below = max(k - stride, 0) if not any(k - stride <= i < k for i in line) else k
        above = min(k + stride, len(ladder.values) - 1) if not any(k < i <= k + stride for i in line) else k
        found.append([i for i in (below, above) if i != k])
    return found


# Optuna ---


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError("a search with equal budgets needs Optuna: pip install 'fedkeel[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _sampler(seed: int) -> Any:
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls some of its options experimental.
        return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=3, constant_liar=True))


def distributions(space: Space, near: Point | None = None) -> dict[str, Any]:
    """The rungs of every ladder for Optuna. near: only rungs close to this point."""
    optuna = import_optuna()
    found = {}
    for key, ladder in space.ladders.items():
        low, high = 0, len(ladder.values) - 1
        if near is not None and ladder.ordered:
            low, high = max(low, near[key] - ladder.strides[0]), min(high, near[key] + ladder.strides[0])
        found[key] = optuna.distributions.IntDistribution(low, high)
    return found


def _tell(sampler: Any, space: Space, points: list[Point], costs: list[float]) -> None:
    optuna = import_optuna()
    for point, cost in zip(points, costs, strict=True):
        state = optuna.trial.TrialState.COMPLETE if math.isfinite(cost) else optuna.trial.TrialState.FAIL
        value = cost if math.isfinite(cost) else None
        made = optuna.trial.create_trial(state=state, value=value, params=point, distributions=distributions(space))
        sampler.add_trial(made)


def _ask(sampler: Any, space: Space, tried: Tried, count: int) -> list[Point]:
    """Proposals of Optuna near the best point. If all points there were tried, the best ones again, with another seed."""
    best = ranking(space, tried)
    about = distributions(space, best[0])
    asked = [sampler.ask(about) for _ in range(count)]
    points: list[Point] = []
    for one in asked:  # A point that was tried already becomes its nearest neighbour that was not.
        point = {key: int(k) for key, k in one.params.items()}
        free = [other for other in _box(about) if other not in best and other not in points]
        near = min(free, key=lambda other: _apart(other, point), default=None)
        points.append(best[len(points) % len(best)] if near is None else near)
    for one in asked:  # `_tell` adds it again, with its score.
        sampler.tell(one, state=import_optuna().trial.TrialState.FAIL)
    return points


def _apart(one: Point, other: Point) -> int:
    return sum(abs(one[key] - other[key]) for key in one)


def _box(about: dict[str, Any]) -> list[Point]:
    ranges = [range(one.low, one.high + 1) for one in about.values()]
    return [dict(zip(about, point, strict=True)) for point in itertools.product(*ranges)]
