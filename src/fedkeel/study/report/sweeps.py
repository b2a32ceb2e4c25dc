"""Figures of a sweep: curves over one axis, heat maps over two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.study.report.figure import Axis, Figure, Heat, Lines, Series, fit
from fedkeel.study.report.table_text import seeds_note, target_text
from fedkeel.study.results.numbers import LOSSES, failures, label_of
from fedkeel.wording import value_text

Row = Mapping[str, Any]
SHOWN = ("final_accuracy", "best_accuracy")


def _scores(rows: Sequence[Row]) -> tuple[str, ...]:
    """The scores that are drawn: accuracies, or test losses where there are no classes."""
    return LOSSES if any(row.get(LOSSES[0]) is not None for row in rows) else SHOWN


def sweeps(results: Mapping[str, Any], rows: Sequence[Row], case: str) -> list[Figure]:
    axes = results["axes"]
    if len(axes) == 1:
        ((axis, values),) = axes.items()
        return [_sweep_curve(results, rows, case, axis, values, metric) for metric in _swept(rows)]
    if len(axes) == 2:
        found: list[Figure] = []
        for metric in _scores(rows):
            found += _heat_maps([row for row in rows if len(row["axes"]) == 2], case, axes, metric)
            for axis, values in axes.items():  # methods that have only one of the two
                mine = [row for row in rows if list(row["axes"]) == [axis]]
                found += [_sweep_curve(results, mine, case, axis, values, metric)] if mine else []
        return found
    return []


def _swept(rows: Sequence[Row]) -> list[str]:
    """The numbers that are drawn over an axis: accuracies, and costs if a target was reached."""
    reached = [row for row in rows if row.get("rounds_to_target") is not None]
    counted = all(row.get("cost_to_target") is not None for row in reached)  # the paper's cost is known
    costs = ["rounds_to_target", "cost_to_target" if counted else "floats_to_target"]
    return [*_scores(rows), *(costs if reached else [])]


def _sweep_curve(
    results: Mapping[str, Any], rows: Sequence[Row], case: str, axis: str, values: Sequence[Any], metric: str
) -> Figure:
    methods = list(dict.fromkeys(row["method"] for row in results["rows"]))
    numbers = all(isinstance(z, int | float) and not isinstance(z, bool) for z in values)
    log = numbers and min(values) > 0 and max(values) / min(values) >= 20
    names = [] if numbers and (log or len(values) > 6) else [str(z) for z in values]
    place = {repr(z): float(i) if names else float(z) for i, z in enumerate(values)}
    series = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        one = _over_axis(mine, [place[repr(row["axes"][axis])] for row in mine if axis in row["axes"]], metric)
        if one.flat and _lost(mine[0], metric):
            one.lost = list(place.values())
        one.style = methods.index(method)
        series += [one] if one.lost or any(y is not None for y in one.y) else []
    x = Axis(axis, -0.3, len(values) - 0.7, names=names) if names else fit(list(place.values()), log, axis)
    label = label_of(metric)
    if metric.endswith("_to_target"):
        label = label.replace("target", target_text(rows[0], rows[0]["targets"][0]))
    y = fit([z for one in series for z in (*one.y, *one.low, *one.high)], label=label)
    cost = not metric.endswith("accuracy")
    title = f"{y.label.capitalize()} over {axis}"
    if any(one.lost for one in series):
        title += "; crosses: not reached or failed" if cost else "; crosses: failed"
    title += "; rings: not of all seeds" * any(one.ringed for one in series)
    name, lost_at = f"sweep-{axis}-{metric}", y.high if cost else y.low
    return Lines(series, x, y, lost_at=lost_at, name=name, case=case, title=title)


def _lost(row: Row, metric: str) -> bool:
    """Did runs end without this number?"""
    return row.get(metric) is None and bool(row["seeds"] or failures(row)[0])


def _over_axis(rows: Sequence[Row], at: list[float], metric: str) -> Series:
    """The line of a method over an axis. at: the places of its rows, empty if the method does not have the axis."""
    name = rows[0]["method"] + ("" if at else seeds_note(rows[0]))
    one = Series(name, 0, at or [0.0], [row.get(metric) for row in rows], marks=True, flat=not at)
    spreads = [row.get(f"{metric}_std") or 0.0 for row in rows]
    if any(spreads):
        one.low = [math.nan if y is None else y - z for y, z in zip(one.y, spreads, strict=True)]
        one.high = [math.nan if y is None else y + z for y, z in zip(one.y, spreads, strict=True)]
    for number, (place, row) in enumerate(zip(at, rows, strict=False)):
        one.lost += [place] if _lost(row, metric) else []
        one.ringed += [number] if row["errors"] and one.y[number] is not None else []
    return one


def _heat_maps(rows: Sequence[Row], case: str, axes: Mapping[str, Sequence[Any]], metric: str) -> list[Figure]:
    """One heat map per method. A colour means the same in all of them."""
    (down, downs), (across, acrosses) = axes.items()
    x = Axis(across, names=[value_text(z, across) for z in acrosses])
    y = Axis(down, names=[value_text(z, down) for z in downs])
    good = [row[metric] for row in rows if row[metric] is not None]
    span = (min(good), max(good)) if good else (0.0, 1.0)
    found: list[Figure] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        at = {(repr(row["axes"][down]), repr(row["axes"][across])): row for row in rows if row["method"] == method}
        grid = [[at.get((repr(a), repr(b)), {}) for b in acrosses] for a in downs]
        partly = {(j, i) for j, line in enumerate(grid) for i, row in enumerate(line) if row.get("errors")}
        values = [[row.get(metric) for row in line] for line in grid]
        title = f"{label_of(metric).capitalize()} of {method} over {down} and {across}; "
        title += f"colours from {span[0]:.3g} to {span[1]:.3g}" + "; *: not of all seeds" * any(
            values[j][i] is not None for j, i in partly
        )
        found.append(Heat(values, x, y, span, partly, name=f"heat-{method}-{metric}", case=case, title=title))
    return found
