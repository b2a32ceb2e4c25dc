"""Values that the command line gives as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, get_type_hints

from fedkeel.core.algorithm import lookup
from fedkeel.core.hyperparameters import allowed


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


def hyperparameters(algorithm: str, given: Iterable[str]) -> dict[str, Any]:
    """Texts `name=value` as hyper-parameters of a method, in the types of their fields. `name` alone is a switch."""
    fields = {field.name: field for field in dataclasses.fields(lookup(algorithm))}  # type: ignore[arg-type]
    kinds: dict[str, Any] = get_type_hints(lookup(algorithm))
    values: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        key = name.replace("-", "_")
        if not equals and key in fields and kinds[key] is not bool:
            raise ValueError(f"option --{name} needs a value; it must be {allowed(fields[key])}")
        values[key] = True if not equals else text if kinds.get(key) is str else literal(text)
    return values
