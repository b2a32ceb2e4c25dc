"""Progress on the screen: a bar per run with rounds, accuracy and the time left."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

MOST_REASONS = 5  # different reasons for dropping clients that are printed; the history has all of them


class RoundBar:
    """A progress bar; call it with every row of a run's history."""

    def __init__(self, name: str, rounds: int) -> None:
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.progress.add_task(name, total=rounds, score="")
        self.reasons: set[str] = set()  # those that were printed already

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, row: dict[str, Any]) -> None:
        self.progress.update(self.task, completed=row["round"] + 1, score=score(row))
        warmup = [("warm-up", one) for one in row.get("warmup_faults", {}).items()]
        for when, (client, why) in warmup + [(f"round {row['round']}", one) for one in row["faults"].items()]:
            if why not in self.reasons and len(self.reasons) < MOST_REASONS:
                self.reasons.add(why)
                self.progress.console.print(f"{when}, client {client} dropped: {why}", markup=False)


def score(row: dict[str, Any]) -> str:
    """The accuracy in a row of the history, or the loss if there is none."""
    if row.get("test_accuracy") is not None:
        return f"accuracy {row['test_accuracy']:.3f}"
    return f"loss {row['train_loss']:.4g}"
