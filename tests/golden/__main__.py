"""Writes what `tests/golden/test_golden.py` compares with: `python -m tests.golden`.

Run it only after a change that is meant to change numbers, and say so in the commit. Digests of other machines become
invalid with such a change, so they are deleted. For a new method run `python -m tests.golden --new`: it adds lines and
changes none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import fedkeel as fk
from tests.golden.tasks import MODELS, digests, finished_run, machine, numbers

FOLDER = Path(__file__).parent
NUMBERS = FOLDER / "numbers.json"


def digest_file() -> Path:
    return FOLDER / f"digests-{machine()}.json"


def main() -> None:
    cases = [(method, task) for method in fk.algorithms() for task in MODELS]
    new, machine_only = ("--new" in sys.argv[1:], "--this-machine" in sys.argv[1:])
    if not new and not machine_only:
        for old in FOLDER.glob("digests-*.json"):
            old.unlink()
    if not machine_only:
        wide = _known(NUMBERS) if new else {}
        for method, task in cases:
            if f"{method} {task}" not in wide:
                wide[f"{method} {task}"] = numbers(finished_run(method, task, torch.float64))
        NUMBERS.write_text(json.dumps(wide).replace('}, "', '},\n"') + "\n")
    exact = _known(digest_file()) if new else {}
    for method, task in cases:
        if f"{method} {task}" not in exact:
            exact[f"{method} {task}"] = digests(finished_run(method, task, torch.float32))
    digest_file().write_text(json.dumps(exact, indent=0) + "\n")


def _known(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


if __name__ == "__main__":
    main()
