"""Ranges of the numbers in a record. A method declares them where it declares the field:

    class Up(NamedTuple):
        dx: Tensor  # [d] local minus global model
        v: NotNegative  # [d] second moment

A client whose record leaves its range is dropped from the round, like one whose numbers are not finite. Without this, one
impossible number, such as a negative second moment, could end a run for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor


@dataclass(frozen=True)
class Range:
    """The least number that a field may hold; with `above`, it must be larger than that."""

    least: float
    above: bool = False

    def rows_outside(self, z: Tensor) -> Tensor:
        """z [S, ...] -> [S] True for rows with a number outside."""
        low = z.flatten(1).amin(1)
        return low <= self.least if self.above else low < self.least

    def __str__(self) -> str:
        return f"{'above' if self.above else 'at least'} {self.least:g}"


NotNegative = Annotated[Tensor, Range(0.0)]
Positive = Annotated[Tensor, Range(0.0, above=True)]
