"""The examples about studies and methods run as they stand, and say what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedkeel as fk

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, place: Path) -> str:
    variables = os.environ | {"PYTHONPATH": str(Path(fk.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_compare_methods(tmp_path):
    out = run("compare_methods.py", tmp_path)
    assert "Paired differences over 7 seeds" in out
    assert "best: " in out
    assert (tmp_path / "runs/example/figure.pdf").read_bytes().startswith(b"%PDF")
    assert "scaffold" in (tmp_path / "runs/example/page.html").read_text()


@pytest.mark.slow
def test_own_method(tmp_path):
    out = run("own_method.py", tmp_path)
    assert out.count("ok ") == 18
    assert "BROKEN" not in out
    assert "fedpull" in out
