"""The facts of one round that a server may use, and the two weighted sums of uploads from which all methods are built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

BLOCK = 524_288  # columns reduced at a time: their sum stays in the cache


@dataclass(frozen=True)
class Round:
    """One round, as the server sees it."""

    t: int  # round, from 0
    N: int  # registered clients
    ids: Tensor  # [S] clients whose uploads arrived, in increasing order
    K: Tensor  # [S] float64, local steps of each
    p: Tensor  # [S] float64, weights in the round; sum 1, or a mean of 1 over rounds if `weighted` corrects them
    weight: Tensor  # [S] float64, weights among all N clients: 1/N each, or n_i / sum of all n
    drawn: SimpleNamespace  # [S] float64 each: the roles from the method's `draw`
    last: bool = True  # False while a warm-up still has clients to visit
    # [S] float64, server steps between a client's start and the use of its upload; 0 in synchronous runs
    delay: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.delay is None:
            object.__setattr__(self, "delay", torch.zeros_like(self.p))

    @property
    def S(self) -> int:
        """How many uploads arrived."""
        return len(self.ids)

    @property
    def K_mean(self) -> float:
        """The weighted mean of the local steps, for server formulas that need one number
        (docs/methods.md, rule R3)."""
        return math.fsum((self.p * self.K).tolist())

    def avg(self, z: Tensor) -> Tensor:
        """The weighted mean over the round, z [S, ...] -> [...]."""
        return weighted_sum(self.p, z)

    def share(self, z: Tensor) -> Tensor:
        """The round's part of the mean over all N clients, z [S, ...] -> [...]. Control variates need it."""
        return weighted_sum(self.weight, z)


def weighted_sum(weights: Tensor, z: Tensor) -> Tensor:
    """sum_i weights[i] z[i], z [S, ...] -> [...]. Rows are added in their order, so all engines have the same bits."""
    if not len(z):  # a part of a warm-up in which nobody answered
        return z.new_zeros(z.shape[1:])
    if z.device.type != "cpu":  # one product: a device would start a kernel for every row and block
        wide = torch.float64 if z.dtype == torch.float64 else torch.float32
        product = weights.to(device=z.device, dtype=wide) @ z.reshape(len(z), -1).to(wide)
        return product.to(z.dtype).view(z.shape[1:])
    rows, factors = z.reshape(len(z), -1), weights.tolist()
    out: Tensor = rows[0] * factors[0]
    for total, part in zip(torch.split(out, BLOCK), torch.split(rows, BLOCK, 1), strict=True):
        for factor, row in zip(factors[1:], part.unbind()[1:], strict=True):
            total.add_(row, alpha=factor)
    return out.view(z.shape[1:])
