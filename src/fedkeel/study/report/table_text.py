"""The numbers of a study as text: for the screen, the page, LaTeX, and beside a paper's numbers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from fedkeel.study.results.numbers import ACCURACIES, COLUMNS, LOSSES, failures, label_of, target_name
from fedkeel.wording import amount, value_text

Row = Mapping[str, Any]
Cell = tuple[str, float | str | None]  # (text, what to sort by)
APART = "≠: apart by more than the two deviations together, and of rounds by more than those between two evaluations"
NOT_COMPARABLE = "not comparable: other data, another model, target or scale than the paper's"
EDGE = " (edge)"  # marks a chosen value that is the least or the largest that was tried
MEASURED_AS = ("final_", "least_", "mean_")
BEYOND = 1e15  # Tables are sorted by this number where a target was missed: after all that were reached.


def with_deviation(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    """`mean ± deviation` with the same number of decimals, or '-' if the row does not have the number."""
    if row.get(name) is None:
        return "-"
    deviation = row.get(f"{name}_std")
    if deviation is None:
        return f"{row[name] * scale:{form}}"
    number, exponent, power = f"{row[name] * scale:#{form}}".partition("e")  # `#` keeps zeros at the end
    number = number.removesuffix(".")
    unit = 10.0 ** int(power or 0) or 1.0
    shown = f"{number} ± {deviation * scale / unit:.{len(number.partition('.')[2])}f}"
    return f"({shown})e{power}" if exponent else shown


def not_reached_note(rows: Sequence[Row]) -> str:
    """Explains `>` before a number of rounds."""
    rounds = {row["rounds"] for row in rows}
    return f">{rounds.pop() if len(rounds) == 1 else 'rounds'}: not reached by all seeds (2/3: by two of three)"


def failures_text(row: Row) -> str:
    """`1 failed, 2 not run`, or '' if all seeds are complete."""
    failed, not_run = failures(row)
    return ", ".join([f"{failed} failed"] * bool(failed) + [f"{not_run} not run"] * bool(not_run))


def screen_row(row: Row, targets: Sequence[float] = ()) -> dict[str, str]:
    """A row of the summary on the screen. If not all seeds reached a target, it has `>rounds` and the share that did."""
    shown = {"method": row["method"]}
    if row.get("final_test_loss") is not None:
        shown |= {label_of(name): with_deviation(row, name, ".4g") for name in LOSSES}
    else:
        shown["final accuracy"] = with_deviation(row, "final_accuracy", ".3f")
        shown["best accuracy"] = with_deviation(row, "best_accuracy", ".3f")
    for number, target in enumerate(targets):
        name = target_name(number)
        shown[f"rounds to {target_text(row, target)}"] = to_target_text(row, "rounds", name)
        shown[f"floats to {target_text(row, target)}"] = to_target_text(row, "floats", name)
        if bytes_say_more(row):
            shown[f"bytes to {target_text(row, target)}"] = to_target_text(row, "bytes", name)
        if row.get("hours") is not None:
            shown[f"virtual hours to {target_text(row, target)}"] = to_target_text(row, "hours", name)
    shown["seconds"] = "-" if row["seconds_std"] is None and row["seeds"] == 0 else f"{row['seconds']:.1f}"
    if row["errors"]:
        shown["method"] += f"\n({failures_text(row)})"
    return shown


def bytes_say_more(row: Row) -> bool:
    """Are the bytes not simply four times the floats?"""
    return row.get("bytes") is not None and row["bytes"] != 4 * row["floats"]


def target_text(row: Row, target: float) -> str:
    """A target of a row. It names the accuracy, unless that is the test accuracy."""
    return f"{target:g}{' training accuracy' if row['target_on'] == 'train_accuracy' else ''}"


def to_target_text(row: Row, kind: str, name: str) -> str:
    """What a row spent until a target. kind: rounds, floats, up, bytes, cost or hours."""
    value = row[f"{kind}_to_{name}"]
    if not row["seeds"]:
        return "-"
    if kind == "hours":
        return f">{row[kind]:.3g}" if value is None else with_deviation(row, f"hours_to_{name}", ".3g")
    if kind in ("floats", "up", "bytes"):
        return f">{amount(row[kind])}" if value is None else amount(value)
    return missed_target_text(row, name, kind) if value is None else with_deviation(row, f"{kind}_to_{name}", ".1f")


def missed_target_text(row: Row, name: str, kind: str = "rounds") -> str:
    """All that was spent, and how many seeds reached the target, if not all did."""
    reached = row[f"reached_{name}"]
    return f">{row[kind]:g}" + (f" ({reached}/{row['seeds']})" if reached else "")


def in_paper_units(row: Row, metric: str) -> str:
    """Our number as papers print it: accuracies in percent. If seeds are missing, it says so."""
    if row["errors"] and not row["seeds"]:
        return failures_text(row)
    if metric.endswith("accuracy"):
        text = with_deviation(row, metric, ".2f", 100)
    elif row.get(metric) is None and "_to_" in metric:
        kind, _, name = metric.partition("_to_")
        text = missed_target_text(row, name, kind)
    else:
        text = with_deviation(row, metric, ".4g" if "norm" in metric or "loss" in metric else ".1f")
    return text + seeds_note(row)


def seeds_note(row: Row) -> str:
    """`(2 of 3 seeds)` if seeds of a row failed or are still to come, else ''."""
    return f" ({row['seeds']} of {row['seeds'] + len(row['errors'])} seeds)" if row["errors"] else ""


def paper_column_titles(rows: Sequence[Row], paper: Mapping[str, Any]) -> list[str]:
    """Headings of a paper's numbers. If the numbers are counted until a target, a heading has our target."""
    name, aims = paper["metric"].partition("_to_")[2], {}
    for row in rows:
        of = {target_name(number): f"to {target_text(row, target)}" for number, target in enumerate(row["targets"])}
        aims[paper_column(row, paper)] = of.get(name, "")
    return [", ".join(part for part in (value_text(z), aims.get(z, "")) if part) for z in paper["at"]]


def place_columns(results: Mapping[str, Any]) -> list[str]:
    """The columns that tell rows of a study apart: the case, if there are several, and the axes."""
    several = len({row["case"] for row in results["rows"]}) > 1
    return (["case"] if several else []) + list(results["axes"])


def place_of(row: Row, columns: Sequence[str]) -> dict[str, str]:
    """The values of these columns in a row."""
    at = {"case": row["case"], **row["axes"]}
    return {name: "-" if at.get(name) is None else value_text(at[name], name) for name in columns}


def paper_column(row: Row, paper: Mapping[str, Any]) -> Any:
    """The column of a paper's numbers that a row belongs to (1 and 1.0 are the same), or None."""
    return next((z for z in paper["at"] if z in (row["case"], *row["axes"].values()) or z == ""), None)


def table_rows(rows: Sequence[Row], compared_by: str = "") -> list[dict[str, Cell]]:
    """The numbers that the report shows. All rows have the same columns; a number that is missing is '-'.

    compared_by: the column by which the methods are compared; then a column has their differences from the best one.
    """
    keys = dict.fromkeys(key for row in rows for key, z in row.items() if z is not None)
    if not any(map(bytes_say_more, rows)):
        keys.pop("bytes", None)
    finals = [key for key in keys if key.startswith(MEASURED_AS) and key not in ACCURACIES and not key.endswith("_std")]
    finals += ["dropped"] * any(row["dropped"] for row in rows)
    finals.sort(key=lambda key: COLUMNS.index(key) if key in COLUMNS else len(COLUMNS))
    targets, chosen, lines = sorted({z for row in rows for z in row["targets"]}), any(row["chosen"] for row in rows), []
    accuracies = () if "final_test_loss" in keys and "final_accuracy" not in keys else ACCURACIES
    for row in rows:
        found: dict[str, Cell] = {label_of(name): (with_deviation(row, name, ".4f"), row[name]) for name in accuracies}
        if compared_by and any(z["standing"] for z in rows):
            about = row["from_best"] or {}
            found["from the best"] = from_best_text(row, compared_by.endswith("accuracy")), about.get("difference", 0.0)
            found["group"] = row["group"], row["group"]
        for target in targets:
            found |= _to_target(row, target, keys)
        found |= {label_of(name): (with_deviation(row, name, ".4g"), row.get(name)) for name in finals}
        found["seconds"] = with_deviation(row, "seconds", ".1f").partition(" ")[0], row["seconds"]
        if "memory_mb" in keys:
            found["memory MB"] = with_deviation(row, "memory_mb", ".0f").partition(" ")[0], row["memory_mb"]
        if chosen:
            values = ", ".join(
                f"{key} {value_text(z, key)}{EDGE * (key in row['edges'])}" for key, z in row["chosen"].items()
            )
            found["chosen"] = values or "-", values or None
        lines.append(found)
    return lines


def _to_target(row: Row, target: float, keys: Container[str]) -> dict[str, Cell]:
    """What a row spent until a target, or empty cells if the target belongs to another case.

    keys: the numbers that the rows of this table have.
    """
    to, mine = target_text(row, target), target in row["targets"]
    name, missed = target_name(row["targets"].index(target)) if mine else "", None
    if mine and row[f"rounds_to_{name}"] is None and row["seeds"]:
        missed = BEYOND * (2 - row[f"reached_{name}"] / row["seeds"])
    counted = {"rounds": "rounds", "floats": "floats", "up": "uploaded floats"}
    counted |= {"cost": "paper's cost"} if "cost" in keys else {}
    counted |= {"bytes": "bytes"} if "bytes" in keys else {}
    counted |= {"hours": "virtual hours"} if "hours" in keys else {}
    found: dict[str, Cell] = {}
    for kind, label in counted.items():
        known = f"{kind}_to_{name}" in row
        found[f"{label} to {to}"] = (
            (to_target_text(row, kind, name), missed or row[f"{kind}_to_{name}"]) if known else ("-", None)
        )
    if row["target_on"] != "test_accuracy":
        found[f"test accuracy at {to}"] = with_deviation(row, f"at_{name}_accuracy", ".4f"), row.get(f"at_{name}_accuracy")
    return found if mine else dict.fromkeys(found, ("", None))


def from_best_text(row: Row, points: bool, interval: bool = True) -> str:
    """The paired difference of a row from the best one, with its interval. ≈: cannot be told from it.

    points: the score is an accuracy, so the difference is in points (hundredths).
    """
    if row["standing"] in ("", "best"):
        return str(row["standing"])
    about, scale, form = row["from_best"], 100.0 if points else 1.0, "+.1f" if points else "+.3g"
    low, high = about["low"], about["high"]
    text = f"{about['difference'] * scale:{form}}"
    if interval and low is not None and low == low:  # One seed has no interval.
        text += f" ({low * scale:{form}} to {high * scale:{form}})"
    return f"≈ {text}" if row["standing"] == "alike" else text


def standing_note(results: Mapping[str, Any]) -> str:
    """Explains the column `from the best`."""
    if not any(row["standing"] == "best" for row in results["rows"]):
        return ""
    unit = " in points" if results["compared_by"].endswith("accuracy") else ""
    score = results["compared_by"].replace("_", " ")
    return (
        f"From the best: mean paired difference of {score}{unit}, with its 95 % interval; "
        "≈: not distinguishable from the best. Methods that share a letter cannot be told apart."
    )


def tried_values(trial: Row) -> dict[str, Any]:
    """The values that a trial of a search had."""
    return {key: z for key, z in trial.items() if key not in ("score", "error", "chosen", "edges", "trial")}


def robustness_text(one: Row) -> str:
    """The part of an axis where a method stays within 5 % of its best."""
    if one["decades"] == 0:
        return f"at one value of {one['axis']} only{', an end of those that were tried' if one['open'] else ''}"
    return f"over {'at least ' if one['open'] else ''}{one['decades']:.2g} decades of {one['axis']}"


def paper_number(text: Any) -> tuple[float, float] | None:
    """(mean, deviation) of a paper's number, or None if the text is not a number."""
    mean, _, deviation = str(text).partition("±")
    try:
        return float(mean), float(deviation or 0)
    except ValueError:
        return None


def differs(row: Row, paper: Mapping[str, Any]) -> bool:
    """Do our number and the paper's differ by more than the sum of the two deviations? For rounds, the distance between two
    evaluations is added. False if the numbers are not comparable."""
    metric = paper["metric"]
    theirs, ours = paper_number(row["paper"][metric]), row.get(metric)
    if not paper["comparable"]:
        return False
    if theirs and ours is None and "_to_" in metric and row["seeds"]:  # we did not reach the target
        return bool(row[metric.partition("_to_")[0]] > sum(theirs))
    if theirs is None or ours is None:
        return (theirs is None) != (ours is None) and bool(row["seeds"])
    scale = 100 if metric.endswith("accuracy") else 1
    known_to = max(row["evaluate_every"] - 1, 0) if metric.startswith("rounds_to_") else 0
    apart = abs(ours * scale - theirs[0])
    return bool(apart > theirs[1] + scale * (row.get(f"{metric}_std") or 0.0) + known_to)


def beside_paper(rows: Sequence[Row], paper: Mapping[str, Any]) -> dict[str, Any]:
    """A table of our numbers and the paper's: one line per method and one cell per column of the paper.

    {} if the paper has no numbers for these rows.
    """
    metric = paper["metric"]
    rows = [row for row in rows if metric in row["paper"]]
    lines: dict[str, list[dict[str, Any]]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {paper_column(row, paper): row for row in rows if row["method"] == method}
        lines[method] = [_beside(mine[z], paper) if z in mine else {} for z in paper["at"]]
    note = APART if any(differs(row, paper) for row in rows) else ""
    return (
        {}
        if not rows
        else {
            "metric": metric.replace("_", " "),
            "percent": metric.endswith("accuracy"),
            "where": paper["where"] or "the paper",
            "heads": ["method", *paper_column_titles(rows, paper)],
            "lines": lines,
            "note": note if paper["comparable"] else NOT_COMPARABLE,
        }
    )


def _beside(row: Row, paper: Mapping[str, Any]) -> dict[str, Any]:
    metric = paper["metric"]
    return {"ours": in_paper_units(row, metric), "theirs": row["paper"][metric], "differs": differs(row, paper)}


def as_latex(results: Mapping[str, Any]) -> str:
    """The summary as LaTeX tables, one per case. They need the package booktabs."""
    from pandas import DataFrame

    blocks = []
    axes = [name for name in place_columns(results) if name != "case"]
    for case in dict.fromkeys(row["case"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["case"] == case]
        lines = []
        score = label_of(results["compared_by"])
        for row, line in zip(rows, table_rows(rows, results["compared_by"]), strict=True):
            shown = {name: text for name, (text, _) in line.items() if name not in ("chosen", "memory MB", "seconds")}
            if score in shown and row["standing"] in TEX_MARKS:
                shown[score] = TEX_MARKS[row["standing"]].format(shown[score])
            lines.append({"method": row["method"] + seeds_note(row), **place_of(row, axes), **shown})
        text = DataFrame(lines).to_latex(index=False, escape=True, column_format="l" + "r" * (len(lines[0]) - 1))
        blocks.append((f"% {case}\n" if case else "") + text)
    notes = "".join(f"% {line}\n" for line in (standing_note(results), results["significance"], results["tuning"]) if line)
    made = "\n".join(blocks).translate(MORE_TEX)
    return made.replace("BEGIN-BOLD", r"\textbf{").replace("END-BOLD", "}") + notes


# Signs that pandas does not escape. A line that begins with `[` would give a length to the `\\\\` before it.
TEX_MARKS = {"best": "BEGIN-BOLD{}END-BOLD", "alike": "{} ≈"}  # pandas would escape commands here
MORE_TEX = str.maketrans({"≈": r"$\approx$", "±": r"$\pm$", ">": "$>$", "<": "$<$", "|": "$|$", "[": "{[}"})
