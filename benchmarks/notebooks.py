"""Runs the notebooks and writes their outputs into them, without what differs from run to run: `make notebooks`.

    python benchmarks/notebooks.py [NAME ...]

Each notebook runs in an empty directory. A notebook whose packages are missing is left as it is.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
SECONDS = 300  # the most that one cell may take
COLOURS = 48  # of a picture: figures have few, and a palette makes them small
# What differs from run to run: times, and the memory of a process.
NOISE = [
    (re.compile(r"<tr><th[^>]*>seconds</th><td>[^<]*</td></tr>"), ""),
    (re.compile(r", seconds=[\d.e+-]+|, [\d.]+ s a run"), ""),
    (re.compile(r"(?m)^.*WARNING.*\n"), ""),
]


def missing(notebook: Any) -> list[str]:
    """The packages that the notebook needs and that are not installed."""
    needs = notebook.metadata.get("fedkeel", {}).get("needs", [])
    return [package for package in needs if importlib.util.find_spec(package) is None]


def execute(notebook: Any, folder: Path) -> None:
    """Runs all cells in a folder. Raises if a cell does."""
    os.environ |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"OMP_NUM_THREADS": "1", "FEDKEEL_CACHE": str(folder / "cache"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute()


def tidy(notebook: Any) -> None:
    """Removes times, progress bars and messages of libraries, and makes pictures small."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if not _is_noise(output)]
        for output in cell.outputs:
            if output.output_type == "stream":
                output.text = _quiet(output.text)
            for kind, value in output.get("data", {}).items():
                output.data[kind] = _small(value) if kind == "image/png" else _quiet(value)
    notebook.metadata = {key: notebook.metadata[key] for key in ("fedkeel", "kernelspec") if key in notebook.metadata}


def _is_noise(output: Any) -> bool:
    html = output.get("data", {}).get("text/html", "")
    shown_nothing = html == "" and output.output_type == "display_data" and "image/png" not in output.data
    return "<progress" in html or shown_nothing or output.get("name") == "stderr"


def _quiet(text: str) -> str:
    for pattern, replacement in NOISE:
        text = pattern.sub(replacement, text)
    return text


def _small(png: str) -> str:
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(COLOURS).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main(names: list[str]) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook: Any = nbformat.read(path, as_version=4)
        if absent := missing(notebook):
            print(f"{path.name}: left as it is; {', '.join(absent)} not installed")
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        tidy(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
