"""Pieces that several methods share: moments kept in place, steps of unit length, who tracks and who must take part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Plan
from fedkeel.core.flat import Layers
from fedkeel.core.steps import Steps

R = TypeVar("R")


@dataclass
class Adam:
    """First and second moment of the gradients of a round, updated in place; all [..., d]."""

    m: Tensor
    v: Tensor
    v_hat: Tensor  # running maximum of v (AMSGrad)
    beta1: float
    beta2: float
    count: Tensor  # [] of steps, for the bias correction of the kernel below

    @classmethod
    def start(cls, steps: Steps, v: Tensor, beta1: float, beta2: float) -> Adam:
        """m = 0 and v = v_hat = the given v."""
        return cls(steps.zeros(), steps.copy(v), steps.copy(v), beta1, beta2, torch.full((), 1e9, device=v.device))

    def descend(self, w: Tensor, g: Tensor, lr: float, eps: float = 0.0) -> None:
        """m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  v_hat <- max(v_hat, v);
        w <- w - lr m / (sqrt(v_hat) + eps).

        One pass of torch's own Adam kernel over the memory, instead of one for every operation above. No method
        here corrects the bias of the moments; the kernel's correction is 1 for a step count that is large enough.
        """
        torch._fused_adam_(
            [w], [g], [self.m], [self.v], [self.v_hat], [self.count],
            lr=lr, beta1=self.beta1, beta2=self.beta2, weight_decay=0.0, eps=eps, amsgrad=True, maximize=False,
        )  # fmt: skip


def unit_step(w: Tensor, u: Tensor, lr: float) -> None:
    """w -= lr u / ||u|| over the last dimension, in place; where u is 0, nothing moves (rule R10)."""
    norm = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    w.addcmul_(u, torch.where(norm > 0, 1 / norm, 0.0), value=-lr)


def layer_unit(u: Tensor, x: Tensor, layers: Layers) -> Tensor:
    """LAMB's normalised direction: every layer of u gets the norm of that layer of x, or 1 where that is 0 (R10)."""
    size = layers.norms(u)
    trust = layers.norms(x)
    trust = torch.where(trust > 0, trust, 1.0)
    return layers.scale(u, torch.where(size > 0, trust / torch.where(size > 0, size, 1.0), 0.0))


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
    count = max(1, round(wanted * S)) if isinstance(wanted, float) else wanted
    chosen = np.zeros(S)
    chosen[rng.permutation(S)[: min(count, S)]] = 1
    return chosen


def check_part(name: str, wanted: float | None, p: Plan) -> None:
    """Refuses what `pick` could only misunderstand; a single client stands for any number, in trials without data."""
    if isinstance(wanted, int) and wanted > p.S and p.N > 1:
        raise ValueError(f"{name}: tracking = {wanted} is not allowed; at most all clients of a round can track, {p.S}")
    if isinstance(wanted, float) and not 0 < wanted <= 1:
        raise ValueError(
            f"{name}: tracking = {wanted:g} is not allowed; a fraction is > 0 and <= 1, a count is written without a point"
        )


def need_everyone(name: str, p: Plan, allow_partial: bool) -> None:
    """Refuses a run in which some clients sit out, unless the user insists (rule R15)."""
    fewest = p.S if p.fewest is None else p.fewest
    if fewest < p.N and not allow_partial:
        raise ValueError(
            f"{name}: a cohort of {fewest} is not allowed; it must be all {p.N} clients, or set allow_partial=True"
        )
