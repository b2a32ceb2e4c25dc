"""Objects that a text spells, `name:option=value,option=value`, so that files, the command line and sweeps can hold them.

Each kind of object is a frozen dataclass whose fields are declared by `hp`. Importing this module loads neither torch nor
numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedkeel.core.hyperparameters import allowed, check_value, python_number
from fedkeel.errors import nearest
from fedkeel.wording import literal


def build(setting: str, kinds: Mapping[str, type], name: object, **options: Any) -> Any:
    """The object of the kind `name` with these options. Raises ValueError for an unknown name, option or value."""
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(f"{setting}: unknown name {name!r}{nearest(str(name), kinds)}")
    fields = {field.name: field for field in dataclasses.fields(kinds[name])}
    where = f"{setting}: {name}"
    for key in options:
        if key not in fields:
            known = nearest(key, fields) if fields else "; it has no options"
            raise ValueError(f"{where}: unknown option {key!r}{known}")
    values = {key: python_number(value) for key, value in options.items()}
    for key, value in values.items():
        check_value(where, fields[key], value)
    for key, field in fields.items():
        if key not in values and field.default is dataclasses.MISSING:
            raise ValueError(f"{where}: option {key} is missing; it must be {allowed(field)}")
    return kinds[name](**values)


def read(setting: str, kinds: Mapping[str, type], text: str) -> Any:
    """The object that a text spells."""
    name, _, rest = text.strip().partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = (z.strip() for z in part.partition("="))
        if not equals:
            raise ValueError(f"{setting} = {text!r} is not allowed; options are written as {name}:option=value,option=value")
        options[key] = literal(value)
    return build(setting, kinds, name.strip(), **options)


def spell(kinds: Mapping[str, type], one: Any) -> str:
    """The text that spells an object. It has the options that differ from their defaults."""
    name = next(name for name, kind in kinds.items() if kind is type(one))
    options = [
        f"{field.name}={getattr(one, field.name)}"
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != field.default
    ]
    return f"{name}:{','.join(options)}" if options else name


def parts_of(text: str) -> list[str]:
    """Splits texts that are joined by commas. A piece `option=value` belongs to the object before it."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and "=" in piece and ":" not in piece:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts
