"""Arrows point down: study, deploy and the command line know the engine, the engine knows core, core knows none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedkeel

SOURCE = Path(fedkeel.__file__).parent
# What a part of the package may import of the others.
MAY = {
    "core": {"core"},
    "algorithms": {"core"},
    "models": {"core", "models"},
    "data": {"core", "data"},
    "engine": {"core", "data", "engine", "progress", "__version__"},  # progress: the bar of `train`, if it is asked for
}


def imported(file: Path) -> set[str]:
    """The parts of fedkeel that a file imports, also inside of functions."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("fedkeel.")}


@pytest.mark.parametrize("part", MAY)
def test_arrows_point_down(part: str) -> None:
    files = sorted((SOURCE / part).glob("*.py"))
    assert files
    wrong = {file.name: above for file in files if (above := imported(file) - MAY[part])}
    assert wrong == {}
