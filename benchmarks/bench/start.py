"""(s) How long one waits: for the help, and for a small run as a whole, which is more than its first result."""

from __future__ import annotations

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
LIMITS = {"fedkeel --help": 0.4, f"fedkeel {' '.join(SMALL)}": 3.0}  # seconds


def waiting(passes: int, step: Callable[[str], None]) -> Iterator[Row]:
    for number in range(passes):
        for command in LIMITS:
            step(command)
            with tempfile.TemporaryDirectory() as folder:
                words = command.split()[1:] + (["--out", str(Path(folder) / "x")] if "run" in command else [])
                start = time.perf_counter()
                program = [sys.executable, "-c", "from fedkeel.cli import main; main()", *words]
                subprocess.run(program, capture_output=True, check=True)
                seconds = time.perf_counter() - start
            yield {"section": "s", "who": command, "pass": number, "seconds": [seconds]}


def section(rows: list[Row]) -> str:
    parts = ["## (s) Waiting", "", "| seconds of the whole command | median | lowest | highest | target | |"]
    parts.append("|---|---|---|---|---|---|")
    for command, limit in LIMITS.items():
        times = [row["seconds"][0] for row in rows if row["who"] == command]
        if times:
            middle = statistics.median(times)
            told = "met" if middle < limit else "**missed**"
            parts.append(f"| `{command}` | {middle:.2f} | {min(times):.2f} | {max(times):.2f} | < {limit} | {told} |")
    return "\n".join(parts) + "\n"
