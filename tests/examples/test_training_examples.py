"""The examples of training run, and their assertions hold."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "each_client"])
def test_example(name: str) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["lightning_module", "hugging_face_trainer"])
def test_example_with_another_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a Trainer may write to its folder
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
