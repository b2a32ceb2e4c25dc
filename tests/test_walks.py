"""How many files of the package a newcomer has to read to follow a command, with every feature off."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "files_called.py"
RUN = ["run", "--algorithm", "scaffold", "--rounds", "2", "--engine", "sequential"]
COMPARE = ["compare", "--algorithms", "fedavg,scaffold", "--rounds", "2", "--seeds", "2", "--engine", "sequential"]


@pytest.mark.parametrize(("words", "most"), [(RUN, 38), ([*COMPARE, "--jobs", "1"], 60)], ids=["run", "compare"])
def test_features_that_are_off_are_not_called(
    words: list[str], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, your feature is called although it is off. Ask `if x is not None` where x is, and import it there."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("files_called", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    called = script.files_called(words)
    off = [name for name in called if name.startswith("channel/") or "virtual_time" in name or "participation" in name]
    assert not off
    assert len(called) <= most, "\n".join(called)
