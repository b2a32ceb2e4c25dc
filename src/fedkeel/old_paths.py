"""Import paths of version 0.1.0 still work. Each gives a DeprecationWarning that names the new place.

Modules that are gone: `fedkeel/__init__.py` puts an empty module in the place of each.
Names that have left a module: they are missing there.
In both cases the module's `__getattr__` calls `moved`. So nothing here runs unless somebody uses an old path.
"""

from __future__ import annotations

import importlib
import warnings
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
        "allowed": "fedkeel.core.hyperparameters:allowed",
        "down_record": "fedkeel.core.records:down_record",
        "floats": "fedkeel.core.records:floats",
        "hp": "fedkeel.core.hyperparameters:hp",
        "is_number": "fedkeel.core.hyperparameters:is_number",
    },
    "fedkeel.runs": {
        "federation": "fedkeel.runs.from_config:federation",
        "resume": "fedkeel.runs.from_config:resume",
        "run": "fedkeel.runs.from_config:train",
        "task": "fedkeel.runs.from_config:task",
    },
}


def moved(module: str, name: str) -> Any:
    """What had this name in this module, with a warning that names its new place."""
    places = GONE.get(module) or MOVED[module]
    if name not in places:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, _, new = places[name].partition(":")
    message = f"{module}.{name} has moved: write `from {place} import {new}`"
    warnings.warn(message, DeprecationWarning, stacklevel=3)  # the line that uses the old name
    return getattr(importlib.import_module(place), new)
