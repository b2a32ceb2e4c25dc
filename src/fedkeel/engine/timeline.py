"""A picture of who worked when, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USED, LATE = "tab:blue", "tab:orange"


def draw_timeline(history: Sequence[Mapping[str, Any]]) -> Figure:
    """One bar for every time a client worked. Lines at the server's steps. Late work has another colour."""
    if not history or "timeline" not in history[0]:
        raise ValueError("timeline: this run has no clock; train with clock='phones' or another fleet")
    from fedkeel.engine.notebook_figure import NotebookFigure

    work = [bar for row in history for bar in row["timeline"]]
    clients = sorted({client for client, *_ in work})
    place = {client: number for number, client in enumerate(clients)}
    figure = NotebookFigure(figsize=(9, min(12, 1.5 + 0.22 * len(clients))), layout="constrained")
    axes = figure.subplots()
    for colour, used in ((USED, True), (LATE, False)):
        bars = [(place[client], begins, ends - begins) for client, begins, ends, good in work if good is used]
        if bars:
            heights, begins, lengths = zip(*bars, strict=True)
            axes.barh(heights, lengths, left=begins, height=0.7, color=colour, label="used" if used else "late")
    for row in history:
        axes.axvline(row["clock_seconds"], color="grey", linewidth=0.4)
    axes.set_yticks(range(len(clients)), clients)
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("client")
    if work:
        axes.legend(loc="upper right")
    return figure
