"""Import paths of version 0.1.0 still work, and say what to write instead."""

from __future__ import annotations

import importlib

import pytest

from fedkeel.old_paths import GONE, MOVED

PATHS = [
    (module, name, place) for table in (GONE, MOVED) for module, names in table.items() for name, place in names.items()
]


@pytest.mark.parametrize(("module", "name", "place"), PATHS, ids=lambda z: z)
def test_an_old_path_leads_to_the_new_place(module: str, name: str, place: str) -> None:
    where, _, new = place.partition(":")
    with pytest.warns(DeprecationWarning, match=f"write `from {where} import {new}`"):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(where), new)


@pytest.mark.parametrize("name", ["algorithms", "defaults", "lookup", "make", "nearest"])
def test_names_that_are_still_in_their_module(name: str) -> None:
    assert callable(getattr(importlib.import_module("fedkeel.core.algorithm"), name))


def test_other_names_are_unknown() -> None:
    for module in ("fedkeel.engine.run", "fedkeel.runs", "fedkeel.core.algorithm"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            importlib.import_module(module).nothing  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("fedkeel.nothing")
