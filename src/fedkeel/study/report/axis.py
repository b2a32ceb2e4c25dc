"""Axes of plots: where a value stands, and which ticks there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Axis:
    label: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    names: list[str] = field(default_factory=list)  # of the places 0, 1, ... if there are only these
    whole: bool = False  # of counts, of which there are no parts

    def __post_init__(self) -> None:
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def at(self, value: float) -> float:
        """0 to 1."""
        if self.log:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        if self.names:
            return [(float(i), name) for i, name in enumerate(self.names)]
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, (last - first) // 5)
            tens = [10.0**e for e in range(first, last + 1, every)]
            if len(tens) < 3:  # less than two decades: 2 and 5 in between
                tens = [z * 10.0**e for e in range(first - 1, last + 1) for z in (1, 2, 5)]
            found = [(z, short(z)) for z in tens if self.low <= z <= self.high * 1.0001]
            if len(found) > 2:
                return found  # or it spans so little that round numbers as on any other axis are better
        step = max(_step((self.high - self.low) / 5), float(self.whole))
        first = math.ceil(self.low / step - 1e-9)
        found = []
        while first * step <= self.high + 1e-9 * step:
            found.append((first * step, short(round(first * step, 12))))
            first += 1
        return found


def _step(rough: float) -> float:
    """1, 2 or 5 times a power of ten."""
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(size * z for z in (1, 2, 5, 10) if size * z >= rough - 1e-12)


def short(number: float) -> str:
    if abs(number) >= 1e15:
        return f"{number:.3g}".replace("e+", "e")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}".replace("e-0", "e-")


def fit(values: Sequence[float], log: bool = False, label: str = "") -> Axis:
    """An axis on which all values have room."""
    good = [z for z in values if z is not None and math.isfinite(z) and (z > 0 or not log)]
    if not good:
        return Axis(label)
    low, high = min(good), max(good)
    if log:
        return Axis(label, low / 1.15, high * 1.15, True)
    pad = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return Axis(label, low - pad, high + pad)
