"""Fixtures for named data sets: a machine without data, and sets that may be smaller than the published ones."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from fedkeel.data.catalogue import CATALOGUE, Layout


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data directory, no hub, and an empty cache."""
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)


def unchecked(layout: Layout) -> Layout:
    """The layout without the counts and checksums of the published files."""
    options = dict(layout.options)
    if "md5" in options:
        options["md5"] = dict.fromkeys(options["md5"], "")
    if "sha256" in options:
        options["sha256"] = ("", "")
    return dataclasses.replace(layout, counts=None, options=options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every data set be smaller than the published one."""
    for name, described in CATALOGUE.items():
        folders = tuple(folder for folder in described.folders if not folder.startswith("/"))
        layouts = tuple(unchecked(layout) for layout in described.layouts)
        monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(described, layouts=layouts, folders=folders))
