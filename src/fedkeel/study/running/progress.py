"""Progress of a study on the screen: one bar for all runs, and a line for each run that has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedkeel.engine.progress import NotebookLine, notebook_bar, score
from fedkeel.engine.state import directory
from fedkeel.study.running.plan import StudyRun

REDRAW = 0.1  # seconds between two drawings
MEMORY = 3600.0  # The time left is estimated from the last hour, because a round may take minutes.
BESIDE = 42  # columns of the screen that the bar, the times and the count of runs need


class StudyBar:
    """The bar counts rounds, not runs, so that the time left is known within the first run.

    It is drawn when something happens and not by a thread, because a process with threads cannot be forked safely.
    """

    def __init__(self, runs: int, rounds: int, shown: bool) -> None:
        self.runs, self.done, self.failed, self.shown = runs, 0, 0, shown
        self.going: dict[StudyRun, dict[str, Any]] = {}  # the runs that have started, with the last row of each
        self.before: dict[StudyRun, int] = {}  # rounds that their checkpoints had, which do not count as work
        self.drawn = 0.0
        in_notebook = shown and Console().is_jupyter
        self.line = NotebookLine() if in_notebook else None
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,
            disable=not shown or in_notebook,
            speed_estimate_period=MEMORY,
        )
        self.rounds, self.rounds_done = rounds, 0
        self.task = self.progress.add_task("", total=rounds, score="")

    def __enter__(self) -> Self:
        return self  # The bar appears when the first run starts.

    def __exit__(self, *_: object) -> None:
        if self.progress.live.is_started:
            self.progress.refresh()
            self.progress.stop()

    def already(self, complete: Sequence[StudyRun]) -> None:
        """These runs were complete before: they count neither as work nor for the time left."""
        self.done += len(complete)
        self.rounds -= sum(run.config.rounds for run in complete)
        self.progress.update(self.task, total=max(self.rounds, 1), completed=self.rounds_done)

    def announce(self, complete: int) -> None:
        self.say(f"{complete} of {self.runs} runs are complete already" if complete else "")

    def begin(self, run: StudyRun) -> None:
        self.progress.start()
        self.going[run] = {"round": -1}
        self.before[run] = 0 if run.fresh else directory.next_round(run.out) or 0
        self.rounds -= self.before[run]
        self.progress.update(self.task, total=max(self.rounds, 1))
        self.refresh(now=True)

    def row(self, run: StudyRun, row: dict[str, Any]) -> None:
        """Called with every row of a run's history."""
        self.going[run] = row
        self.refresh()

    def refresh(self, now: bool = False) -> None:
        if not now and time.monotonic() - self.drawn < REDRAW:
            return
        self.drawn = time.monotonic()
        rounds = self.rounds_done + sum(max(row["round"] + 1 - self.before[run], 0) for run, row in self.going.items())
        names = ", ".join(run.name for run in self.going)
        scores = ", ".join(score(row) for row in self.going.values() if row["round"] >= 0)
        failed = f", {self.failed} failed" if self.failed else ""
        description = f"{self.done}/{self.runs} runs{failed}"
        if self.line is not None:
            return self.line.show(notebook_bar(description, rounds, max(self.rounds, 1), f"{names}  {scores}"))
        room = max(self.progress.console.width - BESIDE - len(description), 0)  # accuracies first, then names
        scores = scores[:room]
        if names and (left := min(room - len(scores) - 2, 60)) > 8:
            description += f"; {names[:left]}"
        self.progress.update(self.task, completed=rounds, description=description, score=scores)
        self.progress.refresh()

    def end(self, run: StudyRun, error: str | None) -> None:
        row = self.going.pop(run, {"round": -1})
        self.done += 1
        self.rounds_done += run.config.rounds - self.before.pop(run, 0)
        self.failed += error is not None
        ending = f"failed: {error}" if error else score(row) if row["round"] >= 0 else "complete"
        if self.line is not None and error:
            print(f"{run.name}: {ending}")
        self.say(f"{run.name}: {ending}")
        self.refresh(now=True)

    def say(self, line: str) -> None:
        if self.line is None and self.shown and line:
            self.progress.console.print(line, markup=False, soft_wrap=True)
