"""Rows of results as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.study.numbers import ACCURACIES, target_name

Row = Mapping[str, Any]


def spread(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """mean ± deviation of a number, '-' if there is none."""
    if row.get(name) is None:
        return "-"
    deviation = row.get(f"{name}_std")
    return f"{row[name] * scale:{form}}" + (f" ± {deviation * scale:{form}}" if deviation is not None else "")


def cells(row: Row, targets: Sequence[float] = ()) -> dict[str, str]:
    """A row of the summary; a target that not all seeds reached is `>rounds`, with the share that did."""
    from fedkeel.show import amount

    shown = {"method": row["method"], "final accuracy": spread(row, "final_accuracy", ".3f")}
    shown["best accuracy"] = spread(row, "best_accuracy", ".3f")
    for number, target in enumerate(targets):
        name = target_name(number)
        missed = row[f"rounds_to_{name}"] is None and row["seeds"] > 0
        shown[f"rounds to {target:g}"] = missed_target(row, name) if missed else spread(row, f"rounds_to_{name}", ".1f")
        floats = row["floats"] if missed else row[f"floats_to_{name}"]
        shown[f"floats to {target:g}"] = "-" if floats is None else ">" * missed + amount(floats)
    shown["seconds"] = "-" if row["seconds_std"] is None and row["seeds"] == 0 else f"{row['seconds']:.1f}"
    if row["errors"]:
        shown["method"] += f"\n({len(row['errors'])} failed)"
    return shown


def missed_target(row: Row, name: str) -> str:
    reached = row[f"reached_{name}"]
    return f">{row['rounds']}" + (f" ({reached}/{row['seeds']})" if reached else "")


def in_paper_units(row: Row, metric: str) -> str:
    """Our number as papers print it: accuracies in percent, costs as they are."""
    if metric in ACCURACIES or metric.endswith("accuracy"):
        return spread(row, metric, ".2f", 100)
    if row.get(metric) is None and "_to_" in metric and row["seeds"]:
        return missed_target(row, metric.partition("_to_")[2])
    return spread(row, metric, ".4g" if "norm" in metric or "loss" in metric else ".1f")


def columns_of(results: Mapping[str, Any]) -> list[str]:
    """Settings that tell the rows of a study apart: the case, if there are several, and the axes."""
    several = len({row["case"] for row in results["rows"]}) > 1
    return (["case"] if several else []) + list(results["axes"])


def place_of(row: Row, columns: Sequence[str]) -> dict[str, str]:
    """Where a row stands in the study."""
    at = {"case": row["case"], **row["axes"]}
    return {name: _plain(at.get(name)) for name in columns}


def _plain(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
