"""The registry of methods: all names, and the class behind a name."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from fedkeel.errors import nearest

if TYPE_CHECKING:
    from fedkeel.core.algorithm import Algorithm


registered: dict[str, type[Algorithm]] = {}


def algorithms() -> list[str]:
    """The names of all registered methods, in alphabetical order."""
    _import_all()
    return sorted(registered)


def defaults(kind: type[Algorithm]) -> dict[str, Any]:
    """The default of every hyper-parameter that has one. Runs that were stored before it existed are read with it."""
    return {one.name: one.default for one in dataclasses.fields(kind) if one.default is not dataclasses.MISSING}  # type: ignore[arg-type]


def lookup(name: str) -> type[Algorithm]:
    """The class registered under `name`."""
    if not isinstance(name, str):
        raise ValueError(f"algorithm: expected a name, not {type(name).__name__}")
    import_file(name)
    if name not in registered:
        _import_all()
    if name not in registered:
        raise ValueError(f"algorithm: unknown name {name!r}{nearest(name, registered)}")
    return registered[name]


def make(name: str, **hyperparameters: Any) -> Algorithm:
    """The method `name` with its defaults, changed by the keywords."""
    cls = lookup(name)
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in hyperparameters:
        if key not in known:
            raise ValueError(f"{name}: unknown hyper-parameter {key!r}{nearest(key, known)}")
    return cls(**hyperparameters)


@functools.cache
def _files() -> list[str]:
    package = importlib.import_module("fedkeel.methods")
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def import_file(name: str) -> None:
    """Imports the file of one built-in method, which is faster than importing all."""
    file = name.replace("-", "_")
    if name not in registered and file in _files():
        importlib.import_module(f"fedkeel.methods.{file}")


def _import_all() -> None:
    for name in _files():
        importlib.import_module(f"fedkeel.methods.{name}")
