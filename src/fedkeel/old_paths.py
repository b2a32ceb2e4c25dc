"""Import paths of version 0.1.0 still work. Each gives a DeprecationWarning that names the new place.

`fedkeel/__init__.py` calls `install`. It adds a finder to Python's import system that makes the modules which are gone, and
adds the names that have left a module to that module. Nothing else of the package imports this file.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Modules that do not exist any more: old module -> {old name: new place}.
GONE: dict[str, dict[str, str]] = {
    "fedkeel.config": {name: f"fedkeel.runs.config:{name}" for name in ("RunConfig", "read", "read_settings", "resolve")},
    "fedkeel.core.rules": {
        "Adam": "fedkeel.rules.adam:Adam",
        "check_part": "fedkeel.rules.tracking:check_part",
        "layer_unit": "fedkeel.rules.lamb:layer_unit",
        "mean_gradient": "fedkeel.rules.tracking:mean_gradient",
        "need_everyone": "fedkeel.rules.participation:need_everyone",
        "pick": "fedkeel.rules.tracking:pick",
        "unit_step": "fedkeel.rules.normalized:unit_step",
    },
    "fedkeel.data.hub": {"from_hub": "fedkeel.data.readers.hub:from_hub"},
    "fedkeel.data.own": {
        "from_csv": "fedkeel.data.readers.csv_table:from_csv",
        "from_folder": "fedkeel.data.readers.picture_folder:from_folder",
    },
    "fedkeel.data.sources": {"load": "fedkeel.data.load:load"},
    "fedkeel.engine.faults": {"RoundError": "fedkeel.errors:RoundError"},
    "fedkeel.engine.run": {"Run": "fedkeel.engine.result:Run"},
}
# Names that have left a module which still exists.
MOVED: dict[str, dict[str, str]] = {
    "fedkeel.cli": {"main": "fedkeel.cli.app:main"},
    "fedkeel.core.algorithm": {
        "algorithms": "fedkeel.core.registry:algorithms",
        "allowed": "fedkeel.core.hyperparameters:allowed",
        "defaults": "fedkeel.core.registry:defaults",
        "down_record": "fedkeel.core.records:down_record",
        "floats": "fedkeel.core.records:floats",
        "hp": "fedkeel.core.hyperparameters:hp",
        "is_number": "fedkeel.core.hyperparameters:is_number",
        "lookup": "fedkeel.core.registry:lookup",
        "make": "fedkeel.core.registry:make",
        "nearest": "fedkeel.errors:nearest",
    },
    "fedkeel.runs": {
        "federation": "fedkeel.runs.from_config:federation",
        "resume": "fedkeel.runs.from_config:resume",
        "run": "fedkeel.runs.from_config:train",
        "task": "fedkeel.runs.from_config:task",
    },
}


class OldPaths(MetaPathFinder, Loader):
    """Finds the modules of the tables above."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in GONE:
            return ModuleSpec(fullname, self)
        if fullname not in MOVED:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_add(module: ModuleType) -> None:
            execute(module)
            module.__getattr__ = _lookup(fullname, MOVED[fullname])  # type: ignore[method-assign]

        spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _lookup(module.__name__, GONE[module.__name__])  # type: ignore[method-assign]


def _lookup(module: str, places: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module with these old names."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = places[name].partition(":")
        message = f"{module}.{name} has moved: write `from {place} import {new}`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(place), new)

    return find


def install() -> None:
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldPaths())
