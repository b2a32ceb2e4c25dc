"""Models of the user's own: `package.module:factory`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from fedkeel.errors import nearest

Shape = tuple[int, ...]
OFFERED = ("shape", "classes", "vocabulary")


def from_factory(name: str, shape: Shape, classes: int, vocabulary: int | None) -> nn.Module:
    """What factory(), factory(shape, classes) or factory(shape, classes, vocabulary) makes, whichever its signature allows.

    It may be a function or a class. Modules of the current directory are found, as `python -m` would find them.
    """
    factory = _find(name)
    arguments = _arguments(name, factory, (shape, classes, vocabulary))
    try:
        model = factory(*arguments)
    except Exception as error:
        raise ValueError(f"model: {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: {name} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def _find(name: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise ValueError(f"model: {name!r} is not allowed; it must be a name, or package.module:factory")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except Exception as error:
        raise ValueError(f"model: cannot import {path!r} (from {here}): {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"model: {path!r} has no {attribute!r}{nearest(attribute, own)}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise ValueError(f"model: {name} is a {type(factory).__name__}; it must be a function or class that makes a model")
    return factory  # type: ignore[no-any-return]


def _arguments(name: str, factory: Callable[..., Any], offered: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first of `offered`: as many as the factory requires, or has by these names."""
    signature = inspect.signature(factory)
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in places)
    named = 0
    while named < min(len(places), len(OFFERED)) and places[named].name == OFFERED[named]:
        named += 1
    given = offered[: max(required, named)]
    try:
        signature.bind(*given)
    except TypeError:
        raise ValueError(f"model: {name}{signature} cannot be called; it must take nothing, or (shape, classes)") from None
    return given
