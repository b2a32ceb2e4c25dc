"""Hyper-parameters: how one is declared, which values it may have, and the error of a wrong one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


def hp(
    default: Any,
    doc: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
    grid: Sequence[float] = (),
) -> Any:
    """Declares a hyper-parameter of a method.

    default: its value if the user gives none. None means that it is optional, or that the method's `plan` fills it in.
    doc: what it means, for help texts.
    above, below: open ends of the allowed range. least, most: closed ends.
    choices: the allowed texts.
    grid: the values among which the papers search.
    """
    limits = {"above": above, "least": least, "below": below, "most": most}
    metadata = {"doc": doc, "choices": tuple(choices), "grid": tuple(grid)} | limits
    return dataclasses.field(default=default, metadata=metadata)


def planned(value: float | None) -> float:
    """The value of a hyper-parameter that may be None until the method's `plan` fills it in."""
    if value is None:
        raise ValueError("a hyper-parameter is still None; call the method's plan(Plan(...)) first, which fills it in")
    return value


def allowed(field: dataclasses.Field[Any]) -> str:
    """The range of a hyper-parameter in words, as errors and help print it."""
    m = field.metadata
    if m.get("allowed"):
        return str(m["allowed"])
    if m.get("choices"):
        return " or ".join(map(repr, m["choices"]))
    signs = {"above": ">", "least": ">=", "below": "<", "most": "<="}
    limits = " and ".join(f"{sign} {m[key]:g}" for key, sign in signs.items() if m.get(key) is not None)
    if _is_switch(field):
        return "true or false"
    if _is_text(field):
        return "a text"
    return f"a whole number {limits}".strip() if _is_whole(field) else limits or "any number"


def _is_switch(field: dataclasses.Field[Any]) -> bool:
    """Is it true or false? A field that is None by default shows it by its example."""
    return isinstance(field.metadata.get("example") if field.default is None else field.default, bool)


def _is_whole(field: dataclasses.Field[Any]) -> bool:
    return field.type in (int, "int", int | None, "int | None")


def _is_text(field: dataclasses.Field[Any]) -> bool:
    return isinstance(field.default, str) or field.type in (str, "str", str | None, "str | None")


def python_number(value: Any) -> Any:
    """A number of numpy (or of another library) as Python's int, float or bool; any other value unchanged.

    Files can hold Python's numbers, and torch accepts them everywhere.
    """
    if type(value).__module__ == "numpy" and not getattr(value, "shape", None):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def is_number(value: Any) -> bool:
    """Is it an int or a float (not a bool) that is finite and fits into a float?"""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_value(name: str, field: dataclasses.Field[Any], value: Any) -> None:
    """Raises a ValueError that says what is allowed, if the value is not. name: the method."""
    if not fits(field, value):
        raise ValueError(f"{name}: {field.name} = {value!r} is not allowed; it must be {allowed(field)}")


def fits(field: dataclasses.Field[Any], value: Any) -> bool:
    """Does the declaration of a hyper-parameter or setting allow the value?"""
    m = field.metadata
    if value is None and field.default is None:
        return True
    if m.get("choices"):
        return isinstance(value, str) and value in m["choices"]
    if _is_switch(field):
        return isinstance(value, bool)
    if _is_text(field):
        return isinstance(value, str)
    if not is_number(value) or (_is_whole(field) and not isinstance(value, int)):
        return False
    return (
        (m.get("above") is None or value > m["above"])
        and (m.get("least") is None or value >= m["least"])
        and (m.get("below") is None or value < m["below"])
        and (m.get("most") is None or value <= m["most"])
    )
