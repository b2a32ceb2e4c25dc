"""Progress of many runs on the screen: one bar for all of them, and a line for each that is done."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedkeel.progress import score


class StudyBar:
    """The bar counts rounds, not runs, so that the time left is known within the first run."""

    def __init__(self, runs: int, rounds: int, complete: int, shown: bool) -> None:
        self.runs, self.rounds, self.done, self.last = runs, rounds, complete, ""
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            disable=not shown or complete == runs,
        )
        self.task = self.progress.add_task("", total=runs * rounds, completed=complete * rounds, score="")
        self.shown = shown
        self.say(f"{complete} of {runs} runs are complete already" if complete else "")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, name: str) -> None:
        self.progress.update(self.task, description=f"{self.done + 1}/{self.runs} {name}", score="")

    def __call__(self, row: dict[str, Any]) -> None:
        """Called with every row of the present run's history."""
        self.progress.update(self.task, completed=self.done * self.rounds + row["round"] + 1, score=score(row))

    def end(self, line: str) -> None:
        self.done += 1
        self.progress.update(self.task, completed=self.done * self.rounds)
        self.say(line)

    def say(self, line: str) -> None:
        if self.shown and line:
            self.progress.console.print(line, markup=False, soft_wrap=True)
