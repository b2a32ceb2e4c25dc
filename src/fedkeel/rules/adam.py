"""Adam's moments, kept in place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeel.core.steps import Steps


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
