"""Numbers as text."""

from __future__ import annotations


def amount(number: float) -> str:
    """A count in three digits: 15.0 k, 3.00 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"
