"""Weighted sums of uploads that grow client by client, so that no upload has to be kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from fedkeel.core.sums import NotASum, Sum

KEEP = 1 << 25  # bytes; uploads that take no more than this together are kept, and no exchange has to run twice


def room(up: Iterable[Tensor]) -> int:
    """How many uploads like this one may be kept."""
    nbytes: int = sum(z.nbytes for z in up)
    return KEEP // max(1, nbytes)


class SumPlan(NamedTuple):
    """Which sums the server step will ask for, and the clients' weights in them."""

    asked: Counter[Sum]  # how often it asks for each
    weights: dict[str, list[float]]  # "avg" and "share" -> the weight of every client if all of them answer


class Totals:
    """The sums of an exchange. They have the bits that `weighted_sum` has for the stacked uploads."""

    def __init__(self, plan: SumPlan, like: Any) -> None:
        """like: the upload of one client; only its shapes and dtypes count."""
        self.weights, self.left = plan.weights, plan.asked.copy()
        # [0, ...] each
        self.like = type(like)(*(z.new_empty((0, *z.shape)) for z in like))
        self.sums: dict[Sum, Tensor] = {}

    def put(self, position: int, up: Any) -> None:
        """Adds one client's upload. Call it in the order of the positions."""
        for name, like, z in zip(up._fields, self.like, up, strict=True):
            if z.shape != like.shape[1:]:
                raise ValueError(f"{name} has shape {list(z.shape)}, others {list(like.shape[1:])}")
        up = type(up)(*(z.to(like.dtype) for z, like in zip(up, self.like, strict=True)))
        for wanted in self.left:
            # torch may round a tensor that is not contiguous in another way.
            value, weight = wanted.term.of(up).contiguous(), self.weights[wanted.weights][position]
            if wanted in self.sums:
                self.sums[wanted].add_(value, alpha=weight)
            else:
                self.sums[wanted] = value * weight

    def take(self, wanted: Sum) -> Tensor:
        """A sum, as a tensor that nobody else uses. You may take it as often as the plan says."""
        if self.left[wanted] < 1:
            raise NotASum("the server step asks for another sum than in its trial")
        self.left[wanted] -= 1
        return self.sums[wanted].clone() if self.left[wanted] else self.sums.pop(wanted)
