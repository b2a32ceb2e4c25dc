"""Models that the user wrote, by name: `package.module:factory`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedkeel.errors import describe
from fedkeel.user_code import find_object

ARGUMENTS = ("shape", "classes", "vocabulary")


def make_user_model(name: str, shape: tuple[int, ...], classes: int, vocabulary: int | None) -> nn.Module:
    """The model that a factory makes. It is a function or a class.

    Its signature decides how it is called: factory(), factory(shape, classes) or factory(shape, classes, vocabulary).
    Modules in the current directory are found, as with `python -m`.
    """
    factory = _find(name)
    arguments = _arguments(name, factory, (shape, classes, vocabulary))
    try:
        model = factory(*arguments)
    except (Exception, SystemExit) as error:
        raise ValueError(f"model: {name} failed: {describe(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: {name} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def _find(name: str) -> Callable[..., Any]:
    factory: Callable[..., Any] = find_object("model", name, "package.module:factory")
    if not callable(factory):
        raise ValueError(f"model: {name} is a {type(factory).__name__}; it must be a function or class that makes a model")
    return factory


def _arguments(name: str, factory: Callable[..., Any], available: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first few of `available`: those that the factory requires, and those whose names its first parameters have."""
    signature = inspect.signature(factory)
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    named = 0
    while named < min(len(positional), len(ARGUMENTS)) and positional[named].name == ARGUMENTS[named]:
        named += 1
    arguments = available[: max(required, named)]
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(f"model: {name}{signature} cannot be called; it must take nothing, or (shape, classes)") from None
    return arguments
