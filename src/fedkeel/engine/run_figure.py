"""A matplotlib figure of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedkeel.engine.run_text import points_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedkeel.engine.result import Run

PANELS = {"loss": ("train_loss", "val_loss", "test_loss"), "accuracy": ("val_accuracy", "test_accuracy")}


def figure_of(run: Run) -> Figure:
    """Losses on the left; accuracies on the right if there are any. A line marks the best round on the validation data.

    The axis counts rounds from 1, as all figures do. `round` in the history is the index t, which begins at 0.
    """
    from fedkeel.engine.notebook_figure import NotebookFigure

    curves = {
        panel: {column: points for column in columns if (points := points_of(run.history, column))}
        for panel, columns in PANELS.items()
    }
    shown = [panel for panel, found in curves.items() if found] or ["loss"]
    figure = NotebookFigure(figsize=(5 * len(shown), 3.2), layout="constrained")
    for panel, axes in zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True):
        for column, points in curves[panel].items():
            axes.plot(
                *zip(*((t + 1, z) for t, z in points), strict=True), label=column, marker="." if len(points) < 30 else None
            )
        if run.best_at is not None:
            axes.axvline(run.best_round + 1, color="0.6", linewidth=0.8, linestyle="--", label="best round")
        axes.set(xlabel="round", ylabel=panel)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    figure.suptitle(f"{run.algorithm.name}, {len(run.history)} rounds")
    return figure
