"""The examples about data run, and learn what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The script, the package that it needs, and the accuracy that each of its runs reaches at least.
EXAMPLES = [
    ("own_tensors.py", "torch", 0.85),
    ("own_csv.py", "sklearn", 0.85),
    ("image_folder.py", "PIL", 0.8),
    ("hugging_face_dataset.py", "datasets", 0.7),
    ("lstm_on_texts.py", "tokenizers", 0.9),
    ("lora_on_texts.py", "peft", 0.7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "package", "least"), EXAMPLES, ids=[script for script, _, _ in EXAMPLES])
def test_an_example_runs_and_learns(script: str, package: str, least: float, tmp_path: Path) -> None:
    pytest.importorskip(package)
    environment = os.environ | {"FEDKEEL_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, str(ROOT / "examples" / script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [float(number) for number in re.findall(r"^accuracy[a-z ]* ([\d.]+)$", done.stdout, re.M)]
    assert found
    assert min(found) >= least, done.stdout
    if script == "own_csv.py":
        assert "classes ('healthy', 'ill'); at this hospital: [1]" in done.stdout
