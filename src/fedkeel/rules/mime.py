"""The base optimisers of Mime and MimeLite (Karimireddy et al. 2020): a step with frozen statistics, and their update.

    base   s     U(g, s)                                      V(g, s)
    sgd    -     g                                            -
    sgdm   m     (1 - beta) g + beta m                        m <- (1 - beta) g + beta m
    adam   m, v  ((1 - beta1) g + beta1 m) / (sqrt(v) + eps)  m <- (1 - beta1) g + beta1 m;  v <- (1 - beta2) g^2 + beta2 v

With `full_step` U is the whole optimiser step on a copy of s, as in FedJAX: sgdm has g + beta m (in V, too), adam
divides by the root of (1 - beta2) g^2 + beta2 v.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BASES = ("sgd", "sgdm", "adam")


@dataclass(frozen=True)
class Base:
    kind: str  # one of BASES
    beta: float
    beta1: float
    beta2: float
    eps: float
    full_step: bool

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first m and v for x [d]. A moment that the optimiser does not use is empty."""
        return torch.zeros_like(x if self.kind != "sgd" else x[:0]), torch.zeros_like(x if self.kind == "adam" else x[:0])

    def step(self, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
        """U(g, s). It overwrites g [..., d]."""
        if self.kind == "sgd":
            return g
        if self.kind == "sgdm":
            return g.mul_(1.0 if self.full_step else 1 - self.beta).add_(m, alpha=self.beta)
        if self.full_step:
            v = self.beta2 * v + (1 - self.beta2) * g**2
        return g.mul_(1 - self.beta1).add_(m, alpha=self.beta1).div_(v.sqrt().add_(self.eps))

    def statistics(self, c: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """V(c, s) for the mean gradient c [d]."""
        if self.kind == "sgd":
            return m, v
        if self.kind == "sgdm":
            return (1.0 if self.full_step else 1 - self.beta) * c + self.beta * m, v
        return (1 - self.beta1) * c + self.beta1 * m, (1 - self.beta2) * c**2 + self.beta2 * v
