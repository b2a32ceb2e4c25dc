"""Pieces that several methods share: moments kept in place, steps of unit length, who tracks and who must take part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from torch import Tensor

from fedkeel.core.algorithm import Plan
from fedkeel.core.steps import Steps

R = TypeVar("R")


def mean_gradient(x: Tensor, steps: Steps, record: Callable[[Tensor], R]) -> tuple[R, R]:
    """The mean mini-batch gradient of a round at x that does not move: a client's first control variate."""
    c = steps.zeros()
    for grad in steps:
        c.add_(grad(x), alpha=1 / steps.K)
    return record(c), record(c)


def pick(rng: np.random.Generator, S: int, wanted: float | None) -> np.ndarray:
    """A random part of S clients as 0/1, [S]: a count, a fraction (float), or all of them (None)."""
    if wanted is None:
        return np.ones(S)
    chosen = np.zeros(S)
    chosen[rng.permutation(S)[: count(S, wanted)]] = 1
    return chosen


def count(S: int, wanted: float | None) -> int:
    """How many of S clients `pick` chooses."""
    if wanted is None:
        return S
    return min(max(1, round(wanted * S)) if isinstance(wanted, float) else wanted, S)


def check_part(name: str, wanted: float | None, p: Plan) -> None:
    """Refuses what `pick` could only misunderstand; a single client stands for any number, in trials without data."""
    if isinstance(wanted, int) and wanted > p.S and p.N > 1:
        raise ValueError(f"{name}: tracking = {wanted} is not allowed; at most all clients of a round can track, {p.S}")
    if isinstance(wanted, float) and not 0 < wanted <= 1:
        raise ValueError(
            f"{name}: tracking = {wanted:g} is not allowed; a fraction is > 0 and <= 1, a count is written without a point"
        )
