"""Conditions as texts, such as `trimmed:0.2`, so that files, the command line and sweeps can hold them.

A text is `name`, `name:value`, or `name:option=value,option=value`. Importing this module loads neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, get_type_hints

from fedkeel.core.hyperparameters import check_value, python_number
from fedkeel.errors import nearest, refuse

# setting -> the module that declares its kinds, as KINDS
MODULES = {
    "aggregation": "fedkeel.channel.aggregation",
    "attack": "fedkeel.channel.attacks",
    "privacy": "fedkeel.channel.privacy",
    "uplink": "fedkeel.channel.compression",
    "downlink": "fedkeel.channel.compression",
}
JOIN = "+"  # between the steps of an uplink


@dataclasses.dataclass(frozen=True)
class Condition:
    """Base of all conditions: a frozen dataclass whose fields are declared by `hp`."""

    word: ClassVar[str]  # its name in texts

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = python_number(getattr(self, field.name))
            check_value(f"{self.word}", field, value)
            wide = isinstance(value, int) and not isinstance(value, bool) and kinds[field.name] in (float, float | None)
            object.__setattr__(self, field.name, float(value) if wide else value)

    def __str__(self) -> str:
        """The text that spells it."""
        fields = dataclasses.fields(self)
        given = [(f.name, getattr(self, f.name)) for f in fields if getattr(self, f.name) != f.default]
        if len(given) == 1 and given[0][0] == fields[0].name:
            return f"{self.word}:{given[0][1]}"
        return ":".join([self.word, ",".join(f"{name}={value}" for name, value in given)]) if given else self.word


def kinds_of(setting: str) -> dict[str, type[Condition]]:
    """Word -> the kind of condition that it names, for one of the settings."""
    return {kind.word: kind for kind in importlib.import_module(MODULES[setting]).KINDS}


def as_text(setting: str, value: Any) -> str | None:
    """The value of a setting in its one spelling. It may be a condition, a text or None; a table for privacy; a list of
    conditions or texts for the uplink."""
    if value is None:
        return None
    made = conditions(setting, value)
    return JOIN.join(map(str, made)) or None


def conditions(setting: str, value: Any) -> list[Condition]:
    """The conditions that the value of a setting names."""
    if value is None:
        return []
    if setting == "uplink":
        steps = value.split(JOIN) if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return [_one(setting, step) for step in steps if step != ""]
    return [_one(setting, value)]


def _one(setting: str, value: Any) -> Condition:
    kinds = kinds_of(setting)
    if isinstance(value, Condition) and type(value) in kinds.values():
        return value
    if isinstance(value, Mapping):
        return _made(setting, next(iter(kinds)), kinds, dict(value))
    if not isinstance(value, str):
        raise refuse(setting, value, f"one of {', '.join(kinds)}, or an object such as fedkeel.{_example(kinds)}")
    name, _, rest = value.strip().partition(":")
    if name not in kinds:
        raise ValueError(f"{setting}: unknown name {name!r}{nearest(name, kinds)}")
    names = [field.name for field in dataclasses.fields(kinds[name])]
    options: dict[str, Any] = {}
    for place, part in enumerate(filter(None, rest.split(","))):
        key, equals, text = (z.strip() for z in part.partition("="))
        if not equals and (place or not names):
            raise refuse(setting, value, f"{name}:value or {name}:option=value,option=value")
        options[key if equals else names[0]] = _literal(text if equals else key)
    return _made(setting, name, kinds, options)


def _example(kinds: Mapping[str, type[Condition]]) -> str:
    return f"{list(kinds.values())[-1].__name__}(...)"


def _made(setting: str, name: str, kinds: Mapping[str, type[Condition]], options: dict[str, Any]) -> Condition:
    fields = {field.name: field for field in dataclasses.fields(kinds[name])}
    for key in options:
        if key not in fields:
            known = nearest(key, fields) if fields else "; it has no options"
            raise ValueError(f"{setting}: {name}: unknown option {key!r}{known}")
    missing = [key for key, field in fields.items() if field.default is dataclasses.MISSING and key not in options]
    if missing:
        raise ValueError(f"{setting}: {name} needs a value for {', '.join(missing)}, such as {name}:{missing[0]}=0.1")
    try:
        return kinds[name](**options)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def _literal(text: str) -> Any:
    """The number that a text spells, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"none": None}.get(text.lower(), text)
