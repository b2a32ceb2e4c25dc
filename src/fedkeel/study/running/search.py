"""Which values of a grid a search tries, and which it chooses: all combinations, or one hyper-parameter after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedkeel.core.hyperparameters import is_number
from fedkeel.study.results.numbers import better_is_less
from fedkeel.wording import value_text

Values = dict[str, Any]  # a value for every key of a grid


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


def edges_of(chosen: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[str]:
    """A sentence for every number that is the least or the largest of its grid."""
    found = []
    for key, z in chosen.items():
        values = grid[key]
        if len(values) > 1 and all(map(is_number, values)) and z in (min(values), max(values)):
            which = "smallest" if z == min(values) else "largest"
            found.append(f"{key} {value_text(z, key)} is the {which} value of its grid")
    return found
