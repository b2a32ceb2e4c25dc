"""What a search may try: the values of every hyper-parameter, also beyond the ends of its grid as far as they make sense.

The values of one hyper-parameter are a ladder. A search begins on the rungs of the grid and climbs past its ends while the
best value is at an end. The last rung is the limit of sense: four decades from the default, or what the method allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.hyperparameters import fits, is_number
from fedkeel.data.federation import Federation
from fedkeel.engine.settings import Settings
from fedkeel.runs.config import SETTINGS
from fedkeel.study.study import Branch
from fedkeel.wording import value_text

DECADE = 4  # rungs of a ladder of step sizes that has no grid
FARTHEST = 4  # decades from the default
CLOSEST = 1e-3  # Momentum and its kin do not come closer to 1.
MOST = 40  # rungs that are added at an end

Point = dict[str, int]  # hyper-parameter -> rung


@dataclass(frozen=True)
class Ladder:
    values: tuple[Any, ...]
    start: int  # the rung of the default
    first: tuple[int, ...]  # the rungs that are tried first
    strides: tuple[int, ...] = (1,)  # how far neighbours of the best rung may be, the coarsest first
    ordered: bool = True  # False for texts: a text has no neighbours and no edge


@dataclass(frozen=True)
class Space:
    ladders: dict[str, Ladder] = field(default_factory=dict)  # the step size first
    fixed: dict[str, Any] = field(default_factory=dict)  # values that would change with the number of rounds
    given: tuple[str, ...] = ()  # hyper-parameters whose grids the user gave: all combinations of these are tried first

    def values(self, point: Mapping[str, int]) -> dict[str, Any]:
        return {key: ladder.values[point[key]] for key, ladder in self.ladders.items()} | self.fixed

    @property
    def start(self) -> Point:
        return {key: ladder.start for key, ladder in self.ladders.items()}

    def line(self, key: str, point: Point, tried: Sequence[Point]) -> list[int]:
        """The rungs of a hyper-parameter that were tried with the other values of a point."""
        return sorted({one[key] for one in tried if {**one, key: 0} == {**point, key: 0}})

    def edges(self, point: Point, tried: Sequence[Point]) -> list[str]:
        """A sentence for every value of a point that is the least or the largest that was tried beside it."""
        found = []
        for key, ladder in self.ladders.items():
            line, k = self.line(key, point, tried), point[key]
            if not ladder.ordered or len(ladder.values) == 1 or line[0] < k < line[-1]:
                continue
            which = "the only one" if len(line) == 1 else "the smallest" if k == line[0] else "the largest"
            sense = k in (0, len(ladder.values) - 1) and len(line) > 1
            why = "the limit of sense" if sense else "the trials ended there"
            found.append(f"{key} {value_text(ladder.values[k], key)} is {which} that was tried ({why})")
        return found


def planned(method: Algorithm, settings: Settings, fed: Federation, layers: Layers | None, rounds: int) -> Algorithm:
    """The method with what follows from the size of the run. Raises ValueError if the method refuses it."""
    N = len(fed)
    S, fewest = settings.largest_cohort(N), settings.smallest_cohort(N)
    K = float(settings.steps_of(fed.sizes).mean())
    return method.plan(Plan(N=N, S=S, K=K, T=rounds, fewest=fewest, layers=layers))


def space_of(branch: Branch, fed: Federation, layers: Layers | None = None) -> Space:
    """What is searched of a branch: its own grids, the step size, and what the papers search.

    What the user has set to one value is not searched.
    """
    config: Any = branch.at({key: z[0] for key, z in branch.grid.items()}, branch.seeds[0], False)
    method, longer = (planned(config.method, config, fed, layers, z * config.rounds) for z in (1, 2))
    about = {one.name: one for one in fields(method)}  # type: ignore[arg-type]
    given = [*branch.config.hyperparameters, *branch.axes]
    fixed = {key: z for key in about if (z := getattr(method, key)) != getattr(longer, key) and key not in given}
    ladders = {key: grown(about.get(key) or SETTINGS[key], z, None) for key, z in branch.grid.items()}
    usual = method.first_lr()
    if "lr" not in (*given, *ladders) and isinstance(usual, float) and usual > 0:
        ladders = {"lr": _step_sizes(about["lr"], usual)} | ladders
    for key, one in about.items():
        usual, grid = getattr(method, key), one.metadata["grid"]
        if key not in (*given, *ladders, *fixed) and len(grid) > 1 and is_number(usual):
            ladders[key] = grown(one, [*grid, *([] if usual in grid else [usual])], usual)
    fixed = {key: z for key, z in fixed.items() if key not in ladders}
    return Space(dict(sorted(ladders.items(), key=lambda pair: pair[0] != "lr")), fixed, tuple(branch.grid))


def _step_sizes(about: Any, usual: float) -> Ladder:
    """A quarter of a decade apart; the default and its neighbours a decade away are tried first."""
    reach = range(-FARTHEST * DECADE, FARTHEST * DECADE + 1)
    found = [(k, float(f"{usual * 10 ** (k / DECADE):.2g}")) for k in reach]
    found = [(k, z) for k, z in found if fits(about, z)]
    places = [k for k, _ in found]
    start = places.index(0)
    first = [start + k for k in (-DECADE, 0, DECADE) if 0 <= start + k < len(found)]
    return Ladder(tuple(z for _, z in found), start, tuple(first), (DECADE, DECADE // 2))


def grown(about: Any, grid: Sequence[Any], usual: Any) -> Ladder:
    """A grid as a ladder. usual: the default; None: the middle of the grid. Whole numbers and texts have only their grid."""
    if not all(map(is_number, grid)):
        start = list(grid).index(usual) if usual in grid else 0
        return Ladder(tuple(grid), start, tuple(range(len(grid))), ordered=False)
    values = sorted(grid)
    first = values[len(values) // 2] if usual is None else usual
    below, above = [], []  # type: tuple[list[float], list[float]]
    if len(values) > 1 and any(isinstance(z, float) for z in values):
        limits = about.metadata
        if limits.get("least") == 0 and limits.get("below") == 1:
            below, above = ([] if values[0] == 0 else [0.0]), _towards_one(values)
        else:
            below, above = _times(values[:2][::-1], first), _times(values[-2:], first)
    below, above = ([z for z in ends if fits(about, z)] for ends in (below, above))
    rungs = [*reversed(below), *values, *above]
    given = tuple(range(len(below), len(below) + len(values)))
    return Ladder(tuple(rungs), rungs.index(first), given)


def _times(pair: Sequence[float], usual: float) -> list[float]:
    """The values after a pair, each as far from the last as the pair is apart, on a logarithmic scale."""
    before, last = pair
    if before <= 0 or last <= 0:
        return []
    ratio, found = last / before, []
    for number in range(1, MOST):
        value = float(f"{last * ratio**number:.2g}")
        if abs(math.log10(value / (usual or last))) > FARTHEST + 1e-9:
            break
        found.append(value)
    return found


def _towards_one(values: Sequence[float]) -> list[float]:
    """The values after the last one of a grid of momenta: the distance from 1 shrinks as it did before."""
    ratio, found = (1 - values[-1]) / (1 - values[-2]), []
    for number in range(1, MOST):
        rest = (1 - values[-1]) * ratio**number
        if rest < CLOSEST - 1e-9:
            break
        found.append(float(f"{1 - rest:.4g}"))
    return found
