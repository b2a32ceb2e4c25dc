"""Finds the benchmarks, which are in the repository and not in the package, and runs them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "benchmarks" / "bench"


def carry_out(only: str, passes: int | None, peers: bool) -> Path:
    """only: letters of sections, "" for all of them; passes: None for each section's own number -> the page of results."""
    if not (FOLDER / "run.py").exists():
        raise ValueError(
            "bench: the benchmarks are not part of the installed package; clone the repository, pip install -e ."
        )
    sys.path.insert(0, str(FOLDER))
    run = importlib.import_module("run")
    chosen = only.replace(",", "").replace(" ", "") or run.SECTIONS
    for letter in chosen:
        if letter not in run.SECTIONS:
            raise ValueError(f"only: there is no section {letter!r}; known: {', '.join(run.SECTIONS)}")
    page: Path = run.bench(chosen, passes, peers)
    return page
