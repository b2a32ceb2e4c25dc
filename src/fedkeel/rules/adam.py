"""Adam's moments, kept in place: AMSGrad without bias correction, and Adam with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.core.steps import Steps
from fedkeel.core.torch_private import adam, amsgrad


@dataclass
class Adam:
    """First and second moment of the gradients of a round, updated in place; all [..., d]."""

    m: Tensor
    v: Tensor
    v_hat: Tensor  # running maximum of v (AMSGrad)
    beta1: float
    beta2: float

    @classmethod
    def start(cls, steps: Steps, v: Tensor, beta1: float, beta2: float) -> Adam:
        """m = 0 and v = v_hat = the given v."""
        own = steps.copy(v)
        return cls(steps.zeros(), own, steps.copy(own), beta1, beta2)  # what was just written is still in the cache

    def descend(self, w: Tensor, g: Tensor, lr: float, eps: float = 0.0) -> None:
        """m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  v_hat <- max(v_hat, v);
        w <- w - lr m / (sqrt(v_hat) + eps).

        The bias of the moments is not corrected.
        """
        amsgrad(w, g, self.m, self.v, self.v_hat, lr, self.beta1, self.beta2, eps)


def adam_step(
    w: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    count: float | Tensor,
    first: int | None = None,
) -> None:
    """A step of Adam with bias correction. It changes w, m and v [..., d] in place.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    w <- w - lr (m / (1 - beta1^first)) / (sqrt(v / (1 - beta2^count)) + eps)

    count: how many gradients the moments have seen, this one included; a number or [..., 1].
    first: the same for m alone, if v has seen more; then `count` has one number.
    """
    seen = count if isinstance(count, Tensor) else w.new_full((1,), count)
    step: float | Tensor = lr
    if first is not None:  # torch's kernel corrects both moments by `count`
        step = lr / (1 - betas[0] ** first) * (1 - torch.pow(betas[0], seen.double()))
    adam(w, g, m, v, seen, step, *betas, eps)
