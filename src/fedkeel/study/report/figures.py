"""The figures of a study: which there are, and what each shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.study.report.choice_figures import choice_figures
from fedkeel.study.report.figure import SETTING, Axis, Bar, Bars, Bubbles, Figure, Lines, Series, fit
from fedkeel.study.report.sweeps import sweeps
from fedkeel.study.report.table_text import missed_target_text, seeds_note, target_text, with_deviation
from fedkeel.study.results.numbers import NOT_RUN, label_of, target_name
from fedkeel.wording import value_text

Row = Mapping[str, Any]
MANY = 16  # A sweep with more lines than this has no curves, only its own figures.
EARLY = 0.2  # share of a line's points that may lie below the plot, if the other lines are easier to tell apart then
POINTS = 240  # of a line; more would not be visible
CURVE = {"test_accuracy": "accuracy", "train_accuracy": "train_accuracy"}  # what a target may be about -> its curve
AGAINST = {  # -> label of the axis, word in the title
    "round": ("round", "rounds"),
    "floats": ("floats up and down per participating client", "communication"),
    "bytes": ("bytes up and down per participating client", "bytes"),
    "hours": ("virtual hours", "virtual time"),
}
LOG = ("test_loss", "train_loss", "train_set_loss", "objective", "gradient_norm", "consistency", "drift", "tracking_error")


def line_styles(results: Mapping[str, Any]) -> dict[str, int]:
    """The number of every line's style. A method has one colour; if a plot shows it at several settings, dashes differ."""
    rows, methods = results["rows"], list(dict.fromkeys(row["method"] for row in results["rows"]))
    found: dict[str, int] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        single = len({row["method"] for row in mine}) == len(mine) or len(mine) > MANY
        for row in mine:
            alike = [other["name"] for other in mine if other["method"] == row["method"]]
            setting = 0 if single else alike.index(row["name"])
            found[row["name"]] = methods.index(row["method"]) + SETTING * setting
    return found


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """All figures, case by case."""
    style = line_styles(results)
    found: list[Figure] = choice_figures(results["choice"], style) if "choice" in results else []
    for case in results["cases"]:
        rows = [row for row in results["rows"] if row["case"] == case]
        if results["axes"]:
            found += sweeps(results, rows, case)
        if len(rows) <= MANY or not results["axes"]:
            found += curves(results, rows, case, style)
        found += costs(rows, case, style)
        if split := results.get("partitions", {}).get(case):
            of = f", for {split['of']}" if split["of"] else ""
            first = f", the first {len(split['counts'])} clients" * split["more"]
            title = f"Samples of every class that a client has (area){of}{first}"
            found.append(Bubbles(split["counts"], name="partition", case=case, title=title))
    return found


# Against rounds and communication -------------------------------------------------------------------------------------


def curves(results: Mapping[str, Any], rows: Sequence[Row], case: str, style: Mapping[str, int]) -> list[Figure]:
    mine = {row["name"]: results["curves"][row["name"]] for row in rows}
    # Virtual time only if all rows have a clock; bytes only if floats do not say the same.
    along = [z for z in AGAINST if all(z in curve for curve in mine.values())]
    if "bytes" in along and all(curve["bytes"] == [4 * z for z in curve["floats"]] for curve in mine.values()):
        along.remove("bytes")
    found = [_curve("accuracy", z, case, mine, rows, style) for z in along]
    columns = dict.fromkeys(key for curve in mine.values() for key in curve if key not in (*AGAINST, "accuracy"))
    found += [_curve(z, "round", case, mine, rows, style) for z in columns]
    return [figure for figure in found if figure.series]


def _curve(
    column: str, along: str, case: str, curves: Mapping[str, Any], rows: Sequence[Row], style: Mapping[str, int]
) -> Lines:
    several = len({row["method"] for row in rows}) < len(rows)
    series = []
    for row in rows:
        curve = curves[row["name"]]
        name = (row["name"].removeprefix(f"{case} | ") if several else row["method"]) + seeds_note(row)
        if any(curve.get(column, {}).values()):  # a run without test data has no accuracies
            series.append(_series(name, style[row["name"]], curve[along], list(curve[column].values())))
    series = [one for one in series if one.x]
    log = column in LOG and all(z is None or z > 0 for one in series for z in one.y)
    y = fit([z for one in series for z in (*one.y, *(() if log else (*one.low, *one.high)))], log, label_of(column))
    if column in CURVE.values():
        y.low, y.high = max(y.low, 0.0), min(y.high, 1.0)
        y.low = _without_start(series, y)
    label, word = AGAINST[along]
    x = Axis(label, 0.0, max((one.x[-1] for one in series), default=1.0), whole=along != "hours", unit=along)
    targets = sorted({z for row in rows for z in row["targets"] if CURVE[row["target_on"]] == column})
    name = f"{column}-{word if along == 'round' else along}"
    made = Lines(series, x, y, targets, name=name, case=case, title=f"{y.label.capitalize()} against {word}")
    made.title += f"; axis from {y.low:.3g}, lower points are not shown" * made.is_cut()
    return made


def _without_start(series: Sequence[Series], y: Axis) -> float:
    """The low end of an axis of accuracies. It leaves out the few lowest points of each line, mostly its first ones, if
    they would take more than half of the plot."""
    lines = [[z for z in one.y if z is not None] for one in series]
    kept = [z for line in lines if line for z in (sorted(line)[int(EARLY * len(line))], line[-1])]
    if not kept:
        return y.low
    low = min(kept) - max(0.04 * (y.high - min(kept)), 0.002)
    return low if low - y.low > 0.5 * (y.high - y.low) else y.low


def _series(name: str, number: int, x: Sequence[float], seeds: Sequence[Sequence[float | None]]) -> Series:
    """The mean over seeds and a band of one deviation, at no more than POINTS points."""
    count = min(POINTS, len(x))
    at = [round(i * (len(x) - 1) / max(count - 1, 1)) for i in range(count)]
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
    found: list[Figure] = []
    begun = any(row["seeds"] or set(row["errors"].values()) != {NOT_RUN} for row in rows)
    for number, target in enumerate(rows[0]["targets"] if begun and len(rows) <= 2 * MANY else []):
        name = target_name(number)
        bars = []
        for row in rows:
            value = row[f"rounds_to_{name}"]
            text = with_deviation(row, f"rounds_to_{name}", ".1f") if value is not None else missed_target_text(row, name)
            text += seeds_note(row)
            if not row["seeds"]:
                text = "not run" if set(row["errors"].values()) == {NOT_RUN} else "failed"
            at = ", ".join(value_text(z, key) for key, z in row["axes"].items())
            short = f"{row['method']} {at}".strip()
            bars.append(Bar(short, style[row["name"]], value, row[f"rounds_to_{name}_std"], text))
        if all(bar.length is None for bar in bars) and any(row["seeds"] for row in rows):
            continue  # nobody reached it; the table says so
        bars.sort(key=lambda bar: math.inf if bar.length is None else bar.length)
        line = "; line: one standard deviation" * any(bar.deviation for bar in bars)
        axes = dict.fromkeys(axis for row in rows for axis in row["axes"])
        title = f"Rounds to {target_text(rows[0], target)}" + (f" (method, {', '.join(axes)})" if axes else "")
        label = f"rounds to {target_text(rows[0], target)}{line}"
        found.append(Bars(bars, label, name=f"rounds-to-{target:g}", case=case, title=title))
    return found
