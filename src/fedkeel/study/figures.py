"""The figures of a study: which there are, and what each shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedkeel.study import svg
from fedkeel.study.axis import Axis, fit
from fedkeel.study.names import plain
from fedkeel.study.numbers import NOT_RUN, failures, target_name
from fedkeel.study.svg import Series

Row = Mapping[str, Any]
MANY = 16  # lines of a sweep in one plot; more of them are shown by its own figures only
EARLY = 0.2  # share of a line's points that may lie below the plot, where the rest is much easier to tell apart without them
POINTS = 240  # of a line; more cannot be seen
NAMES = {
    "accuracy": "test accuracy",
    "train_loss": "mean local training loss",
    "train_set_loss": "loss on all training data",
    "train_accuracy": "accuracy on all training data",
    "objective": "objective on all training data",
    "gradient_norm": "gradient norm",
    "consistency": "consistency term",
    "drift": "client drift",
    "cosine": "cosine of client and mean displacement",
    "tracking_error": "tracking error",
    "qp_violated": "violated constraints",
    "qp_turned": "relative change by the projection",
    "cost_to_target": "paper's cost to target",
}
LOG = ("train_loss", "train_set_loss", "objective", "gradient_norm", "consistency", "drift", "tracking_error")


@dataclass
class Figure:
    name: str  # of its file
    case: str
    title: str
    inline: str  # as it stands in the page
    alone: str  # as it stands in a file
    legend: list[tuple[str, int]] = field(default_factory=list)  # of lines: (name, look)
    data: dict[str, Any] = field(default_factory=dict)  # what the page needs to name a point under the pointer


def looks(results: Mapping[str, Any]) -> dict[str, int]:
    """A look for every line: that of its method, or of its own where a method has several in a case that are drawn."""
    rows, methods = results["rows"], list(dict.fromkeys(row["method"] for row in results["rows"]))
    found: dict[str, int] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        single = len({row["method"] for row in mine}) == len(mine) or len(mine) > MANY
        for number, row in enumerate(mine):
            found[row["name"]] = methods.index(row["method"]) if single else number
    return found


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """All figures, case by case."""
    style, found = looks(results), []
    for case in results["cases"]:
        rows = [row for row in results["rows"] if row["case"] == case]
        if results["axes"]:
            found += sweeps(results, rows, case)
        if len(rows) <= MANY or not results["axes"]:
            found += curves(results, rows, case, style)
        found += costs(rows, case, style)
        if split := results.get("partitions", {}).get(case):
            drawn, of = svg.bubbles(split["counts"]), f", for {split['of']}" if split["of"] else ""
            first = f", the first {len(split['counts'])} clients" * split["more"]
            title = f"Samples of every class that a client has (area){of}{first}"
            found.append(Figure("partition", case, title, drawn, drawn))
    return found


# Against rounds and communication -------------------------------------------------------------------------------------


def curves(results: Mapping[str, Any], rows: Sequence[Row], case: str, style: Mapping[str, int]) -> list[Figure]:
    mine = {row["name"]: results["curves"][row["name"]] for row in rows}
    goals = sorted({z for row in rows for z in row["targets"]})
    found = [
        _curve("accuracy-rounds", case, mine, rows, style, "accuracy", "round", "round", goals),
        _curve(
            "accuracy-floats",
            case,
            mine,
            rows,
            style,
            "accuracy",
            "floats",
            "floats up and down per participating client",
            goals,
        ),
    ]
    columns = dict.fromkeys(key for curve in mine.values() for key in curve if key not in ("round", "floats", "accuracy"))
    found += [_curve(f"{z}-rounds", case, mine, rows, style, z, "round", "round", []) for z in columns]
    return [figure for figure in found if figure.legend]


def _curve(
    name: str,
    case: str,
    curves: Mapping[str, Any],
    rows: Sequence[Row],
    style: Mapping[str, int],
    column: str,
    along: str,
    label: str,
    goals: Sequence[float],
) -> Figure:
    several = len({row["method"] for row in rows}) < len(rows)
    series = []
    for row in rows:
        curve = curves[row["name"]]
        label_of = row["name"].removeprefix(f"{case} | ") if several else row["method"]
        if any(curve.get(column, {}).values()):  # a run without test data has no accuracies
            series.append(_series(label_of, style[row["name"]], curve[along], list(curve[column].values())))
    series = [one for one in series if one.x]
    log = column in LOG and all(z is None or z > 0 for one in series for z in one.y)
    y = fit([z for one in series for z in (*one.y, *(() if log else (*one.low, *one.high)))], log, NAMES.get(column, column))
    if column == "accuracy":
        y.low, y.high = max(y.low, 0.0), min(y.high, 1.0)
        y.low = _without_start(series, y)
    x = Axis(label, 0.0, max((one.x[-1] for one in series), default=1.0))
    title = f"{y.label.capitalize()} against {'rounds' if along == 'round' else 'communication'}"
    data = {"x": [x.low, x.high], "y": [y.low, y.high], "log": y.log, "unit": along}
    data["series"] = [{"name": one.name, "x": one.x, "y": one.y} for one in series]
    legend = [(one.name, one.look) for one in series]
    return Figure(
        name, case, title, svg.lines(series, x, y, goals), svg.lines(series, x, y, goals, alone=True), legend, data
    )


def _without_start(series: Sequence[Series], y: Axis) -> float:
    """Where an axis of accuracies begins: the few lowest points of each line, mostly its first ones, would leave the others
    no room."""
    lines = [[z for z in one.y if z is not None] for one in series]
    kept = [z for line in lines if line for z in (sorted(line)[int(EARLY * len(line))], line[-1])]
    if not kept:
        return y.low
    low = min(kept) - max(0.04 * (y.high - min(kept)), 0.002)
    return low if low - y.low > 0.5 * (y.high - y.low) else y.low


def _series(name: str, number: int, x: Sequence[float], seeds: Sequence[Sequence[float | None]]) -> Series:
    """The mean over seeds and a band of one deviation, at not too many points."""
    at = sorted(
        {round(i * (len(x) - 1) / (min(POINTS, len(x)) - 1)) for i in range(min(POINTS, len(x)))} if len(x) > 1 else {0}
    )
    at = [i for i in at if all(seed[i] is not None for seed in seeds)]
    values = [[float(seed[i] or 0.0) for seed in seeds] for i in at]
    means = [_rounded(statistics.fmean(z)) for z in values]
    one = Series(name, number, [_rounded(x[i]) for i in at], list(means))
    if len(seeds) > 1:
        spreads = [statistics.stdev(z) for z in values]
        one.low = [a - b for a, b in zip(means, spreads, strict=True)]
        one.high = [a + b for a, b in zip(means, spreads, strict=True)]
    return one


def _rounded(z: float) -> float:
    return float(f"{z:.5g}")


# Costs to target ------------------------------------------------------------------------------------------------------


def costs(rows: Sequence[Row], case: str, style: Mapping[str, int]) -> list[Figure]:
    """Bars of rounds to every target, the fewest first."""
    from fedkeel.study.cells import missed_target, spread

    found = []
    begun = any(row["seeds"] or set(row["errors"].values()) != {NOT_RUN} for row in rows)
    for number, target in enumerate(rows[0]["targets"] if begun and len(rows) <= 2 * MANY else []):
        name = target_name(number)
        lines = []
        for row in rows:
            value = row[f"rounds_to_{name}"]
            told = spread(row, f"rounds_to_{name}", ".1f") if value is not None else missed_target(row, name)
            if not row["seeds"]:
                told = "not run" if set(row["errors"].values()) == {NOT_RUN} else "failed"
            at = ", ".join(plain(z) for z in row["axes"].values())
            short = f"{row['method']} {at}".strip()
            lines.append((short, style[row["name"]], value, row[f"rounds_to_{name}_std"], told))
        if all(line[2] is None for line in lines) and any(row["seeds"] for row in rows):
            continue  # nobody reached it, as the table says
        lines.sort(key=lambda z: math.inf if z[2] is None else z[2])
        line = "; line: one standard deviation" * any(z[3] for z in lines)
        axes = dict.fromkeys(axis for row in rows for axis in row["axes"])
        title = f"Rounds to {target:.4g}" + (f" (method, {', '.join(axes)})" if axes else "")
        drawn = svg.bars(lines, f"rounds to {target:g}{line}")
        found.append(Figure(f"rounds-to-{target:g}", case, title, drawn, drawn))
    return found


# Sweeps ---------------------------------------------------------------------------------------------------------------


def sweeps(results: Mapping[str, Any], rows: Sequence[Row], case: str) -> list[Figure]:
    axes = results["axes"]
    if len(axes) == 1:
        return [_sweep_curve(results, rows, case, *next(iter(axes.items())), metric) for metric in _swept(rows)]
    if len(axes) == 2:
        methods = dict.fromkeys(row["method"] for row in rows if len(row["axes"]) == 2)
        found = [_heat_map([row for row in rows if row["method"] == z], case, axes, z) for z in methods]
        for axis, values in axes.items():  # of methods that have one of the two only
            mine = [row for row in rows if list(row["axes"]) == [axis]]
            found += [_sweep_curve(results, mine, case, axis, values, "best_accuracy")] if mine else []
        return found
    return []


def _swept(rows: Sequence[Row]) -> list[str]:
    """What a sweep is drawn for: accuracy, and costs where a target is reached."""
    reached = [row for row in rows if row.get("rounds_to_target") is not None]
    counted = all(row.get("cost_to_target") is not None for row in reached)  # by the paper
    costs = ["rounds_to_target", "cost_to_target" if counted else "floats_to_target"]
    return ["final_accuracy", "best_accuracy"] + (costs if reached else [])


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
        one.look = methods.index(method)
        series += [one] if any(y is not None for y in one.y) else []
    x = Axis(axis, -0.3, len(values) - 0.7, names=names) if names else fit(list(place.values()), log, axis)
    label = NAMES.get(metric, metric.replace("_", " "))
    if metric.endswith("_to_target"):
        label = label.replace("target", f"{rows[0]['targets'][0]:g}")
    y = fit([z for one in series for z in (*one.y, *one.low, *one.high)], label=label)
    cost = not metric.endswith("accuracy")
    title = f"{y.label.capitalize()} over {axis}"
    if any(one.lost for one in series):
        title += "; crosses: not reached" if cost else "; crosses: failed"
    legend = [(one.name, one.look) for one in series]
    data = {"x": [x.low, x.high], "y": [y.low, y.high], "log": False, "logx": log, "unit": axis, "names": names}
    data["series"] = [{"name": one.name, "x": one.x, "y": one.y} for one in series if not one.flat]
    inline, alone = (svg.lines(series, x, y, alone=z, lost_at=y.high if cost else y.low) for z in (False, True))
    return Figure(f"sweep-{axis}-{metric}", case, title, inline, alone, legend, data)


def _over_axis(rows: Sequence[Row], at: list[float], metric: str) -> Series:
    """A method's line over an axis; at: places of its rows, none if it does not have the axis."""
    one = Series(rows[0]["method"], 0, at or [0.0], [row.get(metric) for row in rows], marks=True, flat=not at)
    spreads = [row.get(f"{metric}_std") or 0.0 for row in rows]
    if any(spreads):
        one.low = [math.nan if y is None else y - z for y, z in zip(one.y, spreads, strict=True)]
        one.high = [math.nan if y is None else y + z for y, z in zip(one.y, spreads, strict=True)]
    ran = [bool(row["seeds"] or failures(row)[0]) for row in rows]
    one.lost = [place for place, y, here in zip(at, one.y, ran, strict=False) if y is None and here]
    return one


def _heat_map(rows: Sequence[Row], case: str, axes: Mapping[str, Sequence[Any]], method: str) -> Figure:
    (down, downs), (across, acrosses) = axes.items()
    at = {(repr(row["axes"][down]), repr(row["axes"][across])): row["best_accuracy"] for row in rows}
    values = [[at.get((repr(a), repr(b))) for b in acrosses] for a in downs]
    x = Axis(across, names=[plain(z) for z in acrosses])
    y = Axis(down, names=[plain(z) for z in downs])
    drawn = svg.heat(values, x, y)
    return Figure(f"heat-{method}", case, f"Best accuracy of {method} over {down} and {across}", drawn, drawn)
