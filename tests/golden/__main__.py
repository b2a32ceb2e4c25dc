"""Writes what `tests/golden/test_golden.py` compares with.

    python -m tests.golden fedavg fedprox    # these methods; for a new method it only adds lines
    python -m tests.golden                   # all methods
    python -m tests.golden --this-machine    # digests for your processor; numbers that are known stay

Run the first two only after a change that is meant to change numbers, and say so in the commit. Digests of other machines
become invalid with such a change, so they are deleted.
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
    here, methods = "--this-machine" in sys.argv[1:], [word for word in sys.argv[1:] if not word.startswith("--")]
    cases = [(method, task) for method in methods or fk.algorithms() for task in MODELS]
    if not here:
        wide = {f"{method} {task}": numbers(finished_run(method, task, torch.float64)) for method, task in cases}
        NUMBERS.write_text(json.dumps(read(NUMBERS) | wide).replace('}, "', '},\n"') + "\n")
        for other in FOLDER.glob("digests-*.json"):
            write(other, {case: digest for case, digest in read(other).items() if case not in wide})
    exact = {f"{method} {task}": digests(finished_run(method, task, torch.float32)) for method, task in cases}
    write(digest_file(), read(digest_file()) | exact)


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def write(file: Path, known: dict[str, Any]) -> None:
    """In the order of the methods. A file without an entry is deleted."""
    order = [f"{method} {task}" for method in fk.algorithms() for task in MODELS]
    found = {case: known[case] for case in order if case in known}
    if found:
        file.write_text(json.dumps(found, indent=0) + "\n")
    else:
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
