"""Imports point down: every module of the package imports only from its own layer and from layers below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedkeel

SOURCE = Path(fedkeel.__file__).parent
# From top to bottom, with what each layer may import beside itself. Every folder and every loose module must be here.
LEAVES = {"errors", "files", "wording", "old_paths", "user_code"}
MAY: dict[str, set[str]] = {
    # The public names, on first use.
    "__init__": {"channel", "core", "data", "engine", "errors", "laws", "models", "runs", "study", "old_paths"},
    "__main__": {"cli"},
    "cli": {"channel", "study", "laws", "deploy", "runs", "engine", "data", "methods", "core", "__version__", *LEAVES},
    "laws": {"engine", "data", "core", *LEAVES},
    "study": {"runs", "engine", "data", "core", *LEAVES},
    "deploy": {"channel", "runs", "engine", "data", "core", *LEAVES},
    "runs": {"engine", "data", "models", "core", *LEAVES},
    "engine": {"channel", "data", "rules", "core", "__version__", *LEAVES},
    "channel": {"core", *LEAVES},
    "models": {"data", "core", *LEAVES},
    "data": LEAVES,
    "methods": {"rules", "core"},
    "rules": {"core", "errors"},
    "core": LEAVES,
    "files": {"errors"},
    "user_code": {"errors"},
    "wording": set(),
    "old_paths": set(),  # import paths of version 0.1.0; it imports their new places by their names
    "errors": set(),
}
MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imported(file: Path) -> set[str]:
    """The layers that a file imports, inside of functions too."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("fedkeel.")}


def test_no_module_is_outside_the_layers() -> None:
    assert {layer_of(file) for file in MODULES} == set(MAY)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_arrows_point_down(file: Path) -> None:
    layer = layer_of(file)
    assert imported(file) - {layer} - MAY[layer] == set()


def test_no_layer_is_above_itself() -> None:
    """The table above has no cycle. Otherwise "below" would have no meaning."""

    def below(layer: str, path: tuple[str, ...] = ()) -> None:
        assert layer not in path, f"a cycle: {' -> '.join((*path, layer))}"
        for other in MAY.get(layer, ()):
            below(other, (*path, layer))

    for layer in MAY:
        below(layer)
