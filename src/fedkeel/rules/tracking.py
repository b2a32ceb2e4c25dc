"""Control variates and tracking: a client's first and next control variate, and which clients of a round track."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from torch import Tensor

from fedkeel.core.algorithm import Plan
from fedkeel.core.steps import Steps

R = TypeVar("R")


def mean_gradient(x: Tensor, steps: Steps, record: Callable[[Tensor], R]) -> tuple[R, R]:
    """The mean of a client's mini-batch gradients, all at x: its first control variate."""
    c = steps.zeros()
    for grad in steps:
        c.add_(grad(x), alpha=1 / steps.K)
    return record(c), record(c)


def track(mean: Tensor, g: Tensor, correction: Tensor, steps: Steps, weight: float = 1.0) -> Tensor:
    """Adds g / K to the mean of a round's gradients, in place -> the direction of this step, clip(weight g + correction).

    In a run with `clip`, (direction - correction) / weight is added instead of g. Then the mean is what SCAFFOLD's listing
    computes from the displacement. It stays bounded, while raw gradients may be much longer than the steps.
    """
    clips = steps.objective.clip is not None
    if not clips:
        mean.add_(g, alpha=1 / steps.K)
    if weight != 1.0:
        g.mul_(weight)
    u = steps.clip(g.add_(correction))
    if clips:
        mean.add_(u - correction, alpha=1 / (steps.K * weight))
    return u


def pick(rng: np.random.Generator, S: int, wanted: float | None) -> np.ndarray:
    """1 for clients chosen at random, 0 for the others, [S]. wanted: a count (int), a fraction (float), or None for all."""
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
    """Refuses a count above S, and a float outside of 0 to 1. A plan with N = 1 is a trial and allows any count."""
    if isinstance(wanted, int) and wanted > p.S and p.N > 1:
        raise ValueError(f"{name}: tracking = {wanted} is not allowed; at most all clients of a round can track, {p.S}")
    if isinstance(wanted, float) and not 0 < wanted <= 1:
        raise ValueError(
            f"{name}: tracking = {wanted:g} is not allowed; a fraction is > 0 and <= 1, a count is written without a point"
        )
