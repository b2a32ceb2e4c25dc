"""(s) How long you wait for the help, and for a whole small run, not only for its first result.

`import torch` alone is measured too, because no training can start earlier."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SMALL = ["run", "--algorithm", "fedavg", "--rounds", "3", "--clients", "10", "--cohort", "5", "--local-steps", "5"]
TORCH = "python -c 'import torch'"
LIMITS = {"fedkeel --help": 0.4, f"fedkeel {' '.join(SMALL)}": 3.0, TORCH: None}  # seconds

# As for a user: Python's compiled files are kept.
COMPILED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def waiting(passes: int, step: Callable[[str], None]) -> Iterator[Row]:
    for number in range(passes):
        for command in LIMITS:
            step(command)
            with tempfile.TemporaryDirectory() as folder:
                words = command.split()[1:] + (["--out", str(Path(folder) / "x")] if "run" in command else [])
                program = [sys.executable, "-c", "from fedkeel.cli.app import main; main()", *words]
                if command == TORCH:
                    program = [sys.executable, "-c", "import torch"]
                start = time.perf_counter()
                subprocess.run(program, capture_output=True, check=True, env=COMPILED)
                seconds = time.perf_counter() - start
            yield {"section": "s", "who": command, "pass": number, "seconds": [seconds]}


def section(rows: list[Row]) -> str:
    parts = ["## (s) Waiting", "", "| seconds of the whole command | median | lowest | highest | target | |"]
    parts.append("|---|---|---|---|---|---|")
    for command, limit in LIMITS.items():
        times = [row["seconds"][0] for row in rows if row["who"] == command]
        if times:
            middle = statistics.median(times)
            verdict = "| " if limit is None else f"< {limit} | {'met' if middle < limit else '**missed**'}"
            parts.append(f"| `{command}` | {middle:.2f} | {min(times):.2f} | {max(times):.2f} | {verdict} |")
    return "\n".join(parts) + "\n"
