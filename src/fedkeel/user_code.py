"""Finds code of the user by its name, `package.module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedkeel.errors import describe, nearest


def find_object(what: str, name: str, example: str) -> Any:
    """The object `package.module:attribute`. what: the setting that names it.  example: the form of the name, in errors.

    Modules in the current directory are found, as with `python -m`.
    """
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise ValueError(f"{what}: {name!r} is not allowed; it must be a name, or {example}")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what}: cannot import {path!r} (from {here}): {describe(error)}") from error
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{what}: {path!r} has no {attribute!r}{nearest(attribute, known)}")
    return getattr(module, attribute)
