"""A run in one line, and as a small table with a chart for notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedkeel.engine.dropped import drops, drops_in_words

if TYPE_CHECKING:
    from fedkeel.engine.result import Run

# The curves of the chart, the first column that a run has. Accuracies come before losses.
CURVES = ("val_accuracy", "test_accuracy", "val_loss", "test_loss", "train_loss")
WIDTH, HEIGHT, EDGE = 320, 90, 6  # of the chart, in pixels


def points_of(history: Sequence[dict[str, Any]], column: str) -> list[tuple[int, float]]:
    """(round, value) of every row that has a finite number in this column."""
    values = [(row["round"], row.get(column)) for row in history]
    return [(t, float(z)) for t, z in values if isinstance(z, int | float) and math.isfinite(z)]


def main_column(history: Sequence[dict[str, Any]]) -> str:
    """The column that says best how good the run is."""
    return next((column for column in CURVES if points_of(history, column)), "train_loss")


def facts(run: Run) -> dict[str, str]:
    """Name -> text: what a reader wants to know of a run first."""
    found = {"method": run.algorithm.name, "rounds": str(len(run.history))}
    for column in CURVES:
        if points := points_of(run.history, column):
            found[column] = f"{points[-1][1]:.4g}"
    if run.best_at is not None:
        found["best_round"] = str(run.best_round)
    found["seconds"] = f"{sum(row['seconds'] for row in run.history):.3g}"
    dropped, expected, _ = drops(run.history)
    if dropped:
        found["dropped"] = f"{dropped} of {expected} answers"
    if run.stopped:
        found["stopped"] = run.stopped
    return found


def run_line(run: Run) -> str:
    """The run in one line."""
    return f"Run({', '.join(f'{name}={text!r}' if ' ' in text else f'{name}={text}' for name, text in facts(run).items())})"


def run_html(run: Run) -> str:
    """A table of the first facts and a chart of the main curve, without scripts."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts(run).items()
    )
    _, _, rounds = drops(run.history)
    words = html.escape(drops_in_words(run.history))
    alarm = f"<pre style='color:#c00'>{words}</pre>" if rounds else ""
    return f"<div><table>{rows}</table>{chart(run.history)}{alarm}</div>"


def chart(history: Sequence[dict[str, Any]]) -> str:
    """The main curve of a run as inline SVG. Empty if there are fewer than two points."""
    column = main_column(history)
    points = points_of(history, column)
    if len(points) < 2:
        return ""
    rounds, values = [t for t, _ in points], [z for _, z in points]
    low, high = min(values), max(values)
    wide, tall = (rounds[-1] - rounds[0]) or 1, (high - low) or 1.0

    def place(t: int, value: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * (t - rounds[0]) / wide
        return f"{x:.1f},{HEIGHT - EDGE - (HEIGHT - 2 * EDGE - 12) * (value - low) / tall:.1f}"

    line = " ".join(place(t, value) for t, value in points)
    label = f"{column}: {low:.4g} to {high:.4g}, rounds {rounds[0] + 1} to {rounds[-1] + 1}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' role='img' aria-label='{label}'>"
        f"<text x='{EDGE}' y='11' font-size='11' fill='currentColor'>{label}</text>"
        f"<polyline points='{line}' fill='none' stroke='#4477aa' stroke-width='1.5'/></svg>"
    )
