"""`fedkeel bench`: runs the chosen sections, and writes results/bench.jsonl and results/bench.md.

A section replaces only its rows, so you can run one again without the others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checksums
import contest
import growth
import memory
import start
import table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from workloads import ROOT, WORKLOADS

import methods

Row = dict[str, Any]
Step = Callable[[str], None]
SECTIONS = "abcdefghijkls"
PASSES = dict.fromkeys("abcdk", 5) | dict.fromkeys("efg", 3) | {"h": 2, "i": 1, "j": 3, "l": 3, "s": 7}
ROWS, PAGE = ROOT / "results" / "bench.jsonl", ROOT / "results" / "bench.md"


def rows_of(section: str, passes: int, with_peers: bool, step: Step) -> Iterator[Row]:
    if section in WORKLOADS:
        return contest.contest(section, passes, with_peers, step)
    made = {"g": methods.methods, "h": growth.growth, "i": memory.memory, "l": checksums.checksums, "s": start.waiting}
    return made[section](passes, step)


def steps(section: str, passes: int, with_peers: bool) -> int:
    if section in WORKLOADS:
        return contest.steps(section, passes, with_peers)
    if section == "g":
        import fedkeel as fk

        return len(fk.algorithms())
    return passes * len({"h": growth.places(), "i": memory.POINTS, "l": checksums.POINTS, "s": start.LIMITS}[section])


def text_of(section: str, rows: list[Row]) -> str:
    if section in WORKLOADS:
        return table.contest_section(section, rows)
    made = {"g": methods.section, "h": growth.section, "i": memory.section, "l": checksums.section, "s": start.section}
    return made[section](rows)


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(rows: list[Row]) -> None:
    """Rows and page, in the order of the sections."""
    ROWS.parent.mkdir(exist_ok=True)
    ordered = sorted(rows, key=lambda row: SECTIONS.index(row["section"]))
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in ordered))
    parts = [(Path(__file__).parent / "page.md").read_text()]
    for section in SECTIONS:
        mine = [row for row in rows if row["section"] == section]
        if mine:
            parts.append(text_of(section, mine))
    PAGE.write_text("\n".join(parts))


def bench(only: str, passes: int | None, with_peers: bool) -> Path:
    """only: letters of sections, e.g. "ab"; passes: None takes the number of each section. Returns the page."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    for section in only:
        count = passes or PASSES[section]
        total = steps(section, count, with_peers)
        with Progress(*columns, TextColumn("{task.fields[now]}"), console=console) as progress:
            task = progress.add_task(f"({section})", total=total, now="")

            def step(now: str, task: TaskID = task, section: str = section) -> None:
                progress.update(task, now=now, advance=1)
                if not console.is_terminal:  # a log file gets lines instead of a bar
                    print(f"{time.strftime('%H:%M:%S')} ({section}) {now}", file=sys.stderr, flush=True)

            others, mine = [row for row in read(ROWS) if row["section"] != section], []
            for row in rows_of(section, count, with_peers, step):
                mine.append(row)
                write(others + mine)  # after every row, so that little is lost if this is stopped
                if "missing" in row:
                    progress.print(f"({section}) {row['who']} cannot take part: {row['missing']}")
            progress.update(task, completed=total, now="")
    return PAGE
