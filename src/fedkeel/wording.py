"""Numbers, values and names as text."""

from __future__ import annotations

import re
from typing import Any

COUNT_OR_SHARE = ("cohort", "tracking")  # settings where 1 means one client, and 1.0 means all of them


def amount(number: float) -> str:
    """A count in three digits: 15.0 k, 3.00 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


def value_text(value: Any, key: str = "") -> str:
    """A value as people read it, and as directories are called. key: the setting that has this value."""
    if isinstance(value, float) and key in COUNT_OR_SHARE:
        return f"{value:.6g}" if value < 1 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def file_name(text: str) -> str:
    """A text as the name of a file. It is never empty, and never leads to another directory."""
    name = re.sub(r"[^\w.=+-]+", "_", text).strip("_")
    return name if name.strip(".") else f"_{name}"


def literal(text: str) -> Any:
    """The number, true, false or none that a text spells; any other text unchanged."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):  # "10" and "0.1" differ: a count and a fraction
        try:
            return kind(text)
        except ValueError:
            pass
    return text
