"""Finds what the user wrote by its name: `package.module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from fedkeel.errors import nearest


def find_own(setting: str, name: str, wanted: str) -> Callable[..., Any]:
    """The function or class `package.module:attribute`. Modules in the current directory are found, as with `python -m`.

    setting: the setting that has this value, for messages.  wanted: a word and what it means, for messages:
    "factory: a function that makes a model".
    """
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise ValueError(
            f"{setting}: {name!r} is not allowed; it must be a name, or package.module:{wanted.partition(':')[0]}"
        )
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except Exception as error:
        raise ValueError(f"{setting}: cannot import {path!r} (from {here}): {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{setting}: {path!r} has no {attribute!r}{nearest(attribute, known)}")
    found: Callable[..., Any] = getattr(module, attribute)
    if not callable(found):
        raise ValueError(f"{setting}: {name} is a {type(found).__name__}; it must be {wanted.partition(': ')[2]}")
    return found
