"""Sets that are not on this machine, and the modules that loading a set imports."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.data.catalogue import CATALOGUE
from tests.data import formats

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("name", [*CATALOGUE])
def test_the_error_says_which_file_is_missing(tmp_path: Path, name: str) -> None:
    if name == "fashion-mnist" and Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("Fashion-MNIST is installed on this system")
    with pytest.raises(ValueError, match=f"data: '{name}' is not in {tmp_path}; put ") as error:
        fk.load(name, tmp_path)
    assert ("fedkeel[hub]" in str(error.value)) == (CATALOGUE[name].hub is not None)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"needs a data directory \(data_dir=, --data-dir or FEDKEEL_DATA\); put "):
        fk.load(name)


def test_an_invalid_data_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^data_dir = '.*/nowhere' is not allowed"):
        fk.load("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"^FEDKEEL_DATA = "):
        fk.load("mnist")
    assert len(fk.load("digits").y) == 1437


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_layout_has_a_reader_that_takes_its_files(name: str) -> None:
    for layout in CATALOGUE[name].layouts:
        module, _, function = layout.reader.partition(":")
        reader = getattr(importlib.import_module(f"fedkeel.data.readers.{module}"), function)
        inspect.signature(reader).bind(*layout.files, **layout.options)


LOADS = """
import sys
import fedkeel as fk
from fedkeel.models import make_model

fk.load({name!r}, {folder!r})
make_model("mlp", (8, 8), 10)
loaded = {{name for name, module in sys.modules.items() if getattr(module, "__spec__", None)}}  # old ones have none
print(*sorted(name for name in loaded if name.startswith(("fedkeel.data.", "fedkeel.models."))))
"""


def imported(name: str, folder: Path) -> set[str]:
    """The modules of data and models that a new process imports to load a set and make a perceptron."""
    code = LOADS.format(name=name, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {module.removeprefix("fedkeel.") for module in done.stdout.split()}


def test_only_used_modules_are_imported(tmp_path: Path) -> None:
    light = {"data.arrays", "data.cache", "data.dataset_pool", "data.federation", "data.load", "data.partition"}
    light |= {"data.catalogue", "data.schema", "data.texts", "models.dense"}
    assert imported("digits", tmp_path) == light
    speech = "To be, or not to be: that is the question. " * 20
    formats.jsonl(tmp_path / "shakespeare_by_role.jsonl", [{"play": "p", "role": "A", "speeches": [speech]}])
    readers = {module for module in imported("shakespeare", tmp_path) if module.startswith("data.readers.")}
    assert readers == {"data.readers.file_contents", "data.readers.leaf"}
