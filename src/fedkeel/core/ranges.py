"""Ranges of the numbers in a record. A method declares them where it declares the field:

    class Up(NamedTuple):
        dx: Tensor  # [d] local minus global model
        v: NotNegative  # [d] second moment

A client whose record leaves its range is dropped from the round, like one whose numbers are not finite. Without this, one
impossible number, such as a negative second moment, could end a run for ever.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import torch
from torch import Tensor

from fedkeel.errors import OutOfRange


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


@functools.cache
def ranges_of(kind: type) -> dict[str, Range]:
    """The fields of a record type that declare a range."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # types that are written as text may name what only mypy imports
        return {}
    found = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
    return {name: allowed for name, allowed in found.items() if isinstance(allowed, Range)}


def check_ranges(*records: Any) -> None:
    """Raises OutOfRange, with the field's name, if a record of one client leaves a range that its type declares."""
    for record in records:
        if record is not None:
            for name, allowed in ranges_of(record.__class__).items():
                z = getattr(record, name)
                if z.numel() and bool(allowed.rows_outside(z.reshape(1, -1))):
                    raise OutOfRange(f"{name} has the number {float(z.min()):.3g}; it must be {allowed}")


def rows_outside(*records: Any) -> dict[int, str]:
    """Rows of records [S, ...] that leave a range, and why."""
    found: dict[int, str] = {}
    for record in records:
        for name, allowed in () if record is None else ranges_of(record.__class__).items():
            z = getattr(record, name)
            if z.numel():
                rows = torch.nonzero(allowed.rows_outside(z)).flatten().tolist()
                found |= dict.fromkeys(rows, f"OutOfRange: {name} must be {allowed}")
    return found
