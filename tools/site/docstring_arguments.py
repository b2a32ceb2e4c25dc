"""Reads the docstrings of this package for the site: lines `name: what it is` are arguments, `>>>` begins an example."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

LINE = re.compile(r"^(\w+(?:, \w+)*): (.*)")


class Arguments(griffe.Extension):
    """mkdocstrings calls it for every function. It writes the docstring in the form that mkdocstrings shows as a table."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            # A default such as `DEFAULTS.cohort` says nothing to a reader; its value does.
            if isinstance(parameter.default, griffe.ExprAttribute) and func.parent.is_module:
                parameter.default = repr(_signature(func.path).parameters[parameter.name].default)
        if func.docstring is not None:
            func.docstring.value = sections(func.docstring.value, {parameter.name for parameter in func.parameters})


def _signature(path: str) -> inspect.Signature:
    module, _, name = path.rpartition(".")
    return inspect.signature(getattr(importlib.import_module(module), name))


def sections(text: str, names: set[str]) -> str:
    """The docstring with its lines about arguments under `Args:` and its example under `Examples:`."""
    prose: list[str] = []
    arguments: list[str] = []
    example: list[str] = []
    place = prose
    for line in re.sub(r"(?<=\S)  (?=\w+: )", "\n", text).splitlines():  # two arguments on one line
        found = LINE.match(line)
        if line.startswith(">>>"):
            place = example
        elif found and set(found.group(1).split(", ")) <= names:
            place = arguments
        elif place is arguments and not line.startswith(" "):
            place = prose
        elif place is example and not line.strip():
            place = prose
            continue
        if place is arguments and found and not line.startswith(" "):
            place += [f"    {name}: {found.group(2)}" for name in found.group(1).split(", ")]
        else:
            place.append(
                ("        " + line.strip()) if place is arguments else ("    " + line) if place is example else line
            )
    parts = ["\n".join(prose).strip()]
    parts += ["Args:\n" + "\n".join(arguments)] if arguments else []
    parts += ["Examples:\n" + "\n".join(example)] if example else []
    return "\n\n".join(parts)
