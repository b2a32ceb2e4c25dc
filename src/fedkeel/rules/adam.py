"""Adam's moments, kept in place: AMSGrad without bias correction, and Adam with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.core.steps import Steps
from fedkeel.core.torch_private import amsgrad


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
        return cls(steps.zeros(), steps.copy(v), steps.copy(v), beta1, beta2)

    def descend(self, w: Tensor, g: Tensor, lr: float, eps: float = 0.0) -> None:
        """m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;  v_hat <- max(v_hat, v);
        w <- w - lr m / (sqrt(v_hat) + eps).

        The bias of the moments is not corrected.
        """
        amsgrad(w, g, self.m, self.v, self.v_hat, lr, self.beta1, self.beta2, eps)


def adam_direction(
    m: Tensor, v: Tensor, g: Tensor, betas: tuple[float, float], eps: float, first: float | Tensor, second: float | Tensor
) -> Tensor:
    """Adam's direction with bias correction, [..., d]. It updates the moments m and v in place.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
    the result is (m / (1 - beta1^first)) / (sqrt(v / (1 - beta2^second)) + eps)

    first, second: how many gradients m and v have seen, this one included; a number or [..., 1].
    """
    beta1, beta2 = betas
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (v / _weight(beta2, second)).sqrt_().add_(eps)
    return (m / _weight(beta1, first)).div_(root)


def _weight(beta: float, count: float | Tensor) -> float | Tensor:
    """1 - beta^count. float32 would lose digits of it while the count is small."""
    if isinstance(count, Tensor):
        return (1 - torch.pow(beta, count.double())).to(count.dtype)
    return float(1 - beta**count)
