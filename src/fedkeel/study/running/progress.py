"""Progress of many runs on the screen: one bar for all of them, and a line for each that is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedkeel.engine.progress import score
from fedkeel.engine.state import directory
from fedkeel.study.running.plan import Job

SHOWN = 0.1  # seconds between two drawings
MEMORY = 3600.0  # seconds by which the time left is reckoned: a round may take minutes
BESIDE = 42  # columns of the screen that bar, times and the count of runs need


class StudyBar:
    """The bar counts rounds, not runs, so that the time left is known within the first run.

    It is drawn when something happens and not by a thread: a process with threads cannot be forked safely.
    """

    def __init__(self, runs: int, rounds: int, shown: bool) -> None:
        self.runs, self.done, self.failed, self.shown = runs, 0, 0, shown
        self.going: dict[Job, dict[str, Any]] = {}  # runs under way, and the last row of each
        self.before: dict[Job, int] = {}  # rounds that their checkpoints had: no work of today
        self.drawn = 0.0
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,
            disable=not shown,
            speed_estimate_period=MEMORY,
        )
        self.rounds, self.rounds_done = rounds, 0
        self.task = self.progress.add_task("", total=rounds, score="")

    def __enter__(self) -> Self:
        return self  # it appears with the first run that is started

    def __exit__(self, *_: object) -> None:
        if self.progress.live.is_started:
            self.progress.refresh()
            self.progress.stop()

    def already(self, jobs: Sequence[Job]) -> None:
        """These runs were there before: they count neither as work done nor for the time left."""
        self.done += len(jobs)
        self.rounds -= sum(job.config.rounds for job in jobs)
        self.progress.update(self.task, total=max(self.rounds, 1), completed=self.rounds_done)

    def announce(self, complete: int) -> None:
        self.say(f"{complete} of {self.runs} runs are complete already" if complete else "")

    def begin(self, job: Job) -> None:
        self.progress.start()
        self.going[job] = {"round": -1}
        self.before[job] = 0 if job.fresh else directory.next_round(job.out) or 0
        self.rounds -= self.before[job]
        self.progress.update(self.task, total=max(self.rounds, 1))
        self.refresh(now=True)

    def row(self, job: Job, row: dict[str, Any]) -> None:
        """Called with every row of a run's history."""
        self.going[job] = row
        self.refresh()

    def refresh(self, now: bool = False) -> None:
        if not now and time.monotonic() - self.drawn < SHOWN:
            return
        self.drawn = time.monotonic()
        rounds = self.rounds_done + sum(max(row["round"] + 1 - self.before[job], 0) for job, row in self.going.items())
        names = ", ".join(job.name for job in self.going)
        scores = ", ".join(score(row) for row in self.going.values() if row["round"] >= 0)
        failed = f", {self.failed} failed" if self.failed else ""
        told = f"{self.done}/{self.runs} runs{failed}"
        room = max(self.progress.console.width - BESIDE - len(told), 0)  # accuracies first, then who has them
        scores = scores[:room]
        if names and (left := min(room - len(scores) - 2, 60)) > 8:
            told += f"; {names[:left]}"
        self.progress.update(self.task, completed=rounds, description=told, score=scores)
        self.progress.refresh()

    def end(self, job: Job, error: str | None) -> None:
        row = self.going.pop(job, {"round": -1})
        self.done += 1
        self.rounds_done += job.config.rounds - self.before.pop(job, 0)
        self.failed += error is not None
        told = f"failed: {error}" if error else f"{score(row)}" if row["round"] >= 0 else "complete"
        self.say(f"{job.name}: {told}")
        self.refresh(now=True)

    def say(self, line: str) -> None:
        if self.shown and line:
            self.progress.console.print(line, markup=False, soft_wrap=True)
