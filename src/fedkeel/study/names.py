"""Names in a study: of what can be set, and of files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from fedkeel.core.registry import lookup
from fedkeel.engine.settings import COUNT_OR_SHARE
from fedkeel.runs.config import SETTINGS, RunConfig
from fedkeel.study.file import StudyFile


def fields_of(label: str, table: Mapping[str, Any]) -> list[str]:
    """The hyper-parameters of the method that a table is about."""
    kind = lookup(table.get("algorithm", label))
    return [one.name for one in dataclasses.fields(kind)]  # type: ignore[arg-type]


def names_of(file: StudyFile) -> set[str]:
    """All settings, and the hyper-parameters of all methods."""
    return set(SETTINGS).union(*(fields_of(label, table) for label, table in file.methods.items()))


def takes_counts(axis: str, file: StudyFile) -> bool:
    """May the values of an axis be whole numbers, as those of local_steps, cohort or memory?"""
    for label, table in file.methods.items():
        kinds = get_type_hints(RunConfig) | get_type_hints(lookup(table.get("algorithm", label)))
        kind = kinds.get(table.get("over", {}).get(axis, axis))
        if int in (kind, *get_args(kind)):
            return True
    return False


def plain(value: Any, key: str = "") -> str:
    """A value as it is shown, and as directories are called. key: whose value it is, where that matters."""
    if isinstance(value, float) and key in COUNT_OR_SHARE:
        return f"{value:.6g}" if value < 1 else str(value)  # 1.0 is all clients, 1 is one
    return f"{value:g}" if isinstance(value, float) else str(value)


def safe(text: str) -> str:
    """A text as the name of a file: never empty, and never one that leads elsewhere."""
    name = re.sub(r"[^\w.=+-]+", "_", text).strip("_")
    return name if name.strip(".") else f"_{name}"
