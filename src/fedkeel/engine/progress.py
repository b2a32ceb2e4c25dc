"""Progress on the screen: a bar per run with rounds, accuracy and the time left."""

from __future__ import annotations

import html
import time
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from fedkeel.engine.dropped import drops, drops_in_words

MOST_REASONS = 5  # different reasons for dropping clients that are printed; the history has all of them
REFRESH = 0.25  # seconds between two updates of a bar in a notebook


class ProgressBar(Protocol):
    """Call it with every row of a run's history."""

    def __call__(self, row: dict[str, Any]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def progress_bar(name: str, rounds: int) -> ProgressBar:
    """A bar for the terminal, or for the notebook in which this process runs."""
    return NotebookBar(name, rounds) if Console().is_jupyter else RoundBar(name, rounds)


class RoundBar:
    """A progress bar in the terminal."""

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
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if any(row["dropped"] for row in self.rows):
            words, bad_rounds = drops_in_words(self.rows), drops(self.rows)[2]
            self.progress.console.print(Text(words, style="bold red" if bad_rounds else "yellow"), soft_wrap=True)

    def __call__(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.progress.update(self.task, completed=row["round"] + 1, score=score(row))
        warmup = [("warm-up", one) for one in row.get("warmup_faults", {}).items()]
        for when, (client, why) in warmup + [(f"round {row['round'] + 1}", one) for one in row["faults"].items()]:
            if why not in self.reasons and len(self.reasons) < MOST_REASONS:
                self.reasons.add(why)
                self.progress.console.print(f"{when}, client {client} dropped: {why}", markup=False)


class NotebookLine:
    """One output of a notebook's cell that is replaced again and again: plain HTML, which needs no widgets."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # a notebook has it

        self.html: Any = HTML
        self.display: Any = display(HTML(""), display_id=True)  # type: ignore[no-untyped-call]

    def show(self, text: str) -> None:
        self.display.update(self.html(text))


class NotebookBar:
    """A progress bar in a notebook."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name, self.rounds = name, rounds
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.line = NotebookLine()
        self.began = time.monotonic()
        self._show()
        return self

    def __call__(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if time.monotonic() - self.shown > REFRESH:
            self._show()

    def __exit__(self, *_: object) -> None:
        self._show()

    def _show(self) -> None:
        self.shown = time.monotonic()
        self.line.show(self._text())

    def _text(self) -> str:
        done = self.rows[-1]["round"] + 1 if self.rows else 0
        seconds = time.monotonic() - self.began
        left = f", about {seconds / done * (self.rounds - done):.0f} s left" if 0 < done < self.rounds else ""
        numbers = f"{done}/{self.rounds}  {score(self.rows[-1]) if self.rows else ''}  {seconds:.0f} s{left}"
        _, _, bad_rounds = drops(self.rows)
        colour = "#c00" if bad_rounds else "inherit"
        words = f"<pre style='color:{colour}'>{html.escape(drops_in_words(self.rows))}</pre>"
        return notebook_bar(self.name, done, self.rounds, numbers) + (words if drops(self.rows)[0] else "")


def notebook_bar(name: str, done: int, of: int, text: str) -> str:
    """A bar as HTML, between a name and a text."""
    bar = f"<progress value='{done}' max='{of}'></progress>"
    return f"<div><b>{html.escape(name)}</b> {bar} {html.escape(text)}</div>"


def score(row: dict[str, Any]) -> str:
    """The accuracy in a row of the history, or a loss if there is none."""
    for column in ("test_accuracy", "val_accuracy"):
        if row.get(column) is not None:
            return f"accuracy {row[column]:.3f}"
    if row.get("test_loss") is not None:
        return f"test loss {row['test_loss']:.4g}"
    return f"loss {row['train_loss']:.4g}"
