"""Choosing values from grids: which trials to run next, given those that were run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedkeel.study.results.columns import better_is_less

Values = dict[str, Any]


class Trials:
    """The trials of one search. `waves` gives out batches of values; scores are put into `scores` in between."""

    def __init__(self, grid: Mapping[str, Sequence[Any]], way: str, metric: str) -> None:
        self.grid, self.way, self.less = dict(grid), way, better_is_less(metric)
        self.scores: list[tuple[Values, float | None]] = []  # None: it failed, or never got there

    def waves(self) -> Iterator[list[Values]]:
        """Batches of trials, none of them twice; after the last, `best` is the choice."""
        if self.way == "grid":
            yield [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
            return
        at = {key: values[len(values) // 2] for key, values in self.grid.items()}
        for key, values in self.grid.items():
            done = [tried for tried, _ in self.scores]
            fresh = [at | {key: value} for value in values if at | {key: value} not in done]
            if fresh:
                yield fresh
            at = self.best() or at

    def count(self) -> int:
        """How many trials there will be."""
        sizes = [len(values) for values in self.grid.values()]
        if self.way == "grid":
            product = 1
            for size in sizes:
                product *= size
            return product
        return sum(sizes) - len(sizes) + 1

    def best(self) -> Values | None:
        """The values with the best score so far, of equals the first; None if nothing was scored. One that is not finite is
        that of a failure."""
        found = [(values, score) for values, score in self.scores if score is not None and math.isfinite(score)]
        if not found:
            return None
        sign = 1 if self.less else -1
        return min(found, key=lambda pair: sign * pair[1])[0]
