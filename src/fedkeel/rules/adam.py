"""Adam's moments, kept in place."""

from __future__ import annotations

from dataclasses import dataclass

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

        No method here corrects the bias of the moments.
        """
        amsgrad(w, g, self.m, self.v, self.v_hat, lr, self.beta1, self.beta2, eps)
