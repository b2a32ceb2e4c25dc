"""Import paths of version 0.1.0 still work, and say what to write instead."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from fedkeel.old_paths import GONE, MOVED

PATHS = [
    (module, name, place) for table in (GONE, MOVED) for module, names in table.items() for name, place in names.items()
]
ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| `(.*)` \| (.*) \|$", (ROOT / "docs/renames.md").read_text().partition("## Modules")[2], re.M)


@pytest.mark.parametrize(("module", "name", "place"), PATHS, ids=lambda z: z)
def test_an_old_path_leads_to_the_new_place(module: str, name: str, place: str) -> None:
    where, _, new = place.partition(":")
    with pytest.warns(DeprecationWarning, match=f"write `from {where} import {new}`"):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(where), new)


@pytest.mark.parametrize("name", ["algorithms", "defaults", "lookup", "make", "nearest"])
def test_names_that_are_still_in_their_module(name: str) -> None:
    assert callable(getattr(importlib.import_module("fedkeel.core.algorithm"), name))


def test_every_module_that_is_gone_has_a_stand_in() -> None:
    stand_ins = {name for name, module in sys.modules.items() if type(module).__name__ == "_OldModule"}
    assert stand_ins == set(GONE)


def test_other_names_are_unknown() -> None:
    for module in ("fedkeel.engine.run", "fedkeel.runs", "fedkeel.core.algorithm"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            importlib.import_module(module).nothing  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("fedkeel.nothing")


@pytest.mark.parametrize(("old", "now"), ROWS, ids=lambda z: z)
def test_the_new_names_of_the_documentation_exist(old: str, now: str) -> None:
    for name in re.findall(r"`(.*?)`", now):
        if "/" in name or name.endswith(".py"):
            assert (ROOT / "src/fedkeel" / name).exists(), name
        elif now.startswith("the same names in"):
            module = importlib.import_module(f"fedkeel.{name}")
            for each in re.findall(r"\w+(?=`|$)", old):
                assert hasattr(module, each), each
        else:
            module_name, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(f"fedkeel.{module_name}"), attribute), name
