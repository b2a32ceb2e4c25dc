"""Values that the command line and study files spell as text."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints
from collections.abc import Iterable

from fedkeel.core.hyperparameters import allowed
from fedkeel.core.registry import lookup


def literal(text: str) -> Any:
    """The number, truth value or none that a text spells; else the text."""
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
    """`name=value` texts as hyper-parameters of an algorithm, each of the type of its field; `name` alone is a switch."""
    import dataclasses

    from fedkeel.core.hyperparameters import allowed
    from fedkeel.core.registry import lookup

    fields = {field.name: field for field in dataclasses.fields(lookup(algorithm))}  # type: ignore[arg-type]
    kinds, values = get_type_hints(lookup(algorithm)), {}
    for item in given:
        name, equals, text = item.partition("=")
        key = name.replace("-", "_")
        if not equals and key in fields and kinds[key] is not bool:
            raise ValueError(f"option --{name} needs a value; it must be {allowed(fields[key])}")
        values[key] = True if not equals else text if kinds.get(key) is str else literal(text)
    return values
