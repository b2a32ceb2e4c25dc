"""The figures of `choose`: score against communication, and how much each candidate depends on its step size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.study.report.figure import Figure, Lines, Series, fit

Row = Mapping[str, Any]


def choice_figures(choice: Mapping[str, Any], style: Mapping[str, int]) -> list[Figure]:
    """style: of the finalists, which look as in the other figures."""
    rows = [row for row in choice["candidates"] if row["score"] is not None]
    others = [row["method"] for row in rows if row["method"] not in style]
    style = dict(style) | {name: len(style) + i for i, name in enumerate(others)}
    return [*_communication(rows, style), *_step_sizes(rows, style)]


def _communication(rows: Sequence[Row], style: Mapping[str, int]) -> list[Figure]:
    """Every candidate as a point. A line joins those that no other candidate beats in both."""
    series, front = [], []
    for row in rows:
        floats, score = float(row["floats_per_round"]), row["score"]
        series.append(Series(row["method"], style[row["method"]], [floats], [score], marks=True))
        if not any(other["floats_per_round"] <= floats and other["score"] > score for other in rows):
            front.append((floats, score))
    front = sorted(set(front))
    if len(rows) < 2:
        return []
    edge = Series("not beaten in both", len(style), [a for a, _ in front], [b for _, b in front])
    xs, ys = [row["floats_per_round"] for row in rows], [row["score"] for row in rows]
    log = min(xs) > 0 and max(xs) > 1.5 * min(xs)
    x, y = fit(xs, log, "floats up and down per round and client"), fit(ys, False, "validation score after tuning")
    made = Lines([*series, edge], x, y, name="choice-communication", title="Score of all candidates against communication")
    return [made]


def _step_sizes(rows: Sequence[Row], style: Mapping[str, int]) -> list[Figure]:
    """Scores of short trials in which only the step size differs."""
    series = []
    for row in rows:
        points = [(a, b) for a, b in row["steps"] if b is not None]
        if len(points) > 1:
            name = row["method"]
            series.append(Series(name, style[name], [a for a, _ in points], [b for _, b in points], marks=True))
    if not series:
        return []
    x = fit([z for one in series for z in one.x], True, "step size (lr)")
    y = fit([z for one in series for z in one.y], False, "validation score of short trials")
    return [Lines(series, x, y, name="choice-step-sizes", title="How much the score depends on the step size")]
