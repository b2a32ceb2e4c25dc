"""The notebooks run from top to bottom, and hold small outputs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbclient and ipykernel")
pytest.importorskip("nbclient", reason="notebooks need nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="notebooks need nbclient and ipykernel")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 200_000  # bytes of a notebook with its outputs
NAMES = [path.stem for path in NOTEBOOKS]


def notebook_runner() -> Any:
    """benchmarks/notebooks.py, which is no package."""
    spec = importlib.util.spec_from_file_location("notebook_runner", ROOT / "benchmarks" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_six() -> None:
    assert NAMES == [
        "1_first_steps",
        "2_your_own_data",
        "3_choose_and_compare",
        "4_heterogeneity_and_drift",
        "5_lora",
        "6_from_simulation_to_deployment",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_outputs_are_small_and_name_no_place_or_time(path: Path) -> None:
    text = path.read_text()
    assert len(text) < LARGEST
    notebook = nbformat.reads(text, as_version=4)
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert "image/png" in shown or "<svg" in shown  # a reader sees pictures
    assert not re.search(r"/(tmp|root|home|work|Users)/|<progress|seconds=|Traceback", shown)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make notebooks`"
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = notebook_runner()
    notebook = nbformat.read(path, as_version=4)
    if absent := runner.missing(notebook):
        pytest.skip(f"{', '.join(absent)} not installed")
    for name in ("PYTHONPATH", "PYTHONWARNINGS", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "FEDKEEL_CACHE"):
        monkeypatch.setenv(name, "")  # so that what `execute` sets is taken back
    runner.execute(notebook, tmp_path)
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert "ipywidgets" not in shown  # rich would ask for them
    if path.stem in ("1_first_steps", "3_choose_and_compare"):  # a run and a study show their progress
        assert "<progress" in shown
