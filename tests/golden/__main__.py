"""Writes what `tests/golden/test_golden.py` compares with: `python -m tests.golden`.

Run it only after a change that is meant to change numbers, and say so in the commit. Digests of other machines become
invalid with such a change, so they are deleted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import fedkeel as fk
from tests.golden.tasks import MODELS, digests, finished_run, machine, numbers

FOLDER = Path(__file__).parent
NUMBERS = FOLDER / "numbers.json"


def digest_file() -> Path:
    return FOLDER / f"digests-{machine()}.json"


def main() -> None:
    cases = [(method, task) for method in fk.algorithms() for task in MODELS]
    if "--this-machine" not in sys.argv[1:]:
        for old in FOLDER.glob("digests-*.json"):
            old.unlink()
        wide = {f"{method} {task}": numbers(finished_run(method, task, torch.float64)) for method, task in cases}
        NUMBERS.write_text(json.dumps(wide).replace('}, "', '},\n"') + "\n")
    exact = {f"{method} {task}": digests(finished_run(method, task, torch.float32)) for method, task in cases}
    digest_file().write_text(json.dumps(exact, indent=0) + "\n")


if __name__ == "__main__":
    main()
