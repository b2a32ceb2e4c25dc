"""A study as one HTML file (page.html is its template): no network needed, light or dark, for any screen and for print."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Template
from markupsafe import Markup, escape

from fedkeel.study.report import svg
from fedkeel.study.report.figure import Figure, Lines
from fedkeel.study.report.figures import MANY, line_styles
from fedkeel.study.report.table_text import (
    as_latex,
    beside_paper,
    failures_text,
    not_reached_note,
    place_columns,
    place_of,
    robustness_text,
    standing_note,
    table_rows,
    tried_values,
)
from fedkeel.study.results.collect import as_csv
from fedkeel.study.results.numbers import NOT_RUN, finite, label_of
from fedkeel.wording import value_text

Row = Mapping[str, Any]


def page(results: Mapping[str, Any], drawn: Sequence[Figure]) -> str:
    """The page with the results of a study (the content of its results.json) and these figures."""
    return _template().render(
        results=results,
        title=results["title"] or _title(results),
        subtitle=_subtitle(results),
        papers=[found for paper in results["paper"] if (found := beside_paper(results["rows"], paper))],
        cases=[_case(results, case, drawn) for case in results["cases"]],
        choice_figures=[one for one in drawn if one.name.startswith("choice-")],
        robustness=_robustness(results),
        incomplete=_incomplete(results),
        tables={"csv": as_csv(results), "tex": as_latex(results)},
        light=svg.LIGHT,
        points={_id(one): finite(_points(one)) for one in drawn if isinstance(one, Lines)},
        plot_style=svg.CLASSES,
    )


@cache
def _template() -> Template:
    made = svg.templates()
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    made.filters |= {
        "word": _word,
        "inline": lambda values: ", ".join(f"{key} = {_word(z, key)}" for key, z in values.items()),
        "tried": lambda trial: ", ".join(f"{key} = {_word(z, key)}" for key, z in tried_values(trial).items()),
        "with_code": _with_code,
        "id": _id,
        "drawn": lambda figure: Markup(svg.draw(figure)),
        "search_title": _search_title,
        "score": _score,
    }
    return made.get_template("page.html")


def _word(value: Any, key: str) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else value_text(value, key)


def _with_code(text: str) -> Markup:
    """A text whose `words in backticks` are code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _id(figure: Figure) -> str:
    return f"{figure.case}/{figure.name}"


def _points(figure: Lines) -> dict[str, Any]:
    """What the page needs to name the point under the pointer."""
    x, y = figure.x, figure.y
    series = [{"name": one.name, "x": one.x, "y": one.y} for one in figure.series if not one.flat]
    ends: dict[str, Any] = {"x": [x.low, x.high], "y": [y.low, y.high], "log": y.log, "logx": x.log}
    ends["targets"] = list(figure.targets)
    return ends | {"unit": x.unit or x.label, "names": x.names, "series": series}


def _title(results: Mapping[str, Any]) -> str:
    task = results["task"]
    options = [f"{key} {task[key]}" for key in ("concentration", "per_client") if key in task]
    names = [str(task[key]) for key in ("data", "split") if key in task] + options
    return ", ".join([*names, f"{task['clients']} clients"] if "clients" in task else names) or ", ".join(_methods(results))


def _methods(results: Mapping[str, Any]) -> list[str]:
    """The names of the methods, the first few of many."""
    names = list(dict.fromkeys(row["method"] for row in results["rows"]))
    return names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more methods"]


def _subtitle(results: Mapping[str, Any]) -> str:
    task, seeds = results["task"], results["seeds"]
    parts = [_title(results)] if results["title"] and "data" in task else []  # the title of a study may not name the data
    parts += [str(task["model"])] if "model" in task else []
    parts += [f"{task['rounds']} round{'s' * (task['rounds'] != 1)}"] if "rounds" in task else []
    if "cohort" in task:
        share = f"{task['cohort']:.0%} of the" if isinstance(task["cohort"], float) else str(task["cohort"])
        parts.append(f"{share} client{'s' * (share != '1')} a round")
    many = f"mean over seeds {', '.join(map(str, seeds))}; ± and bands: standard deviation"
    return "; ".join([", ".join(parts)] * bool(parts) + [many if len(seeds) > 1 else f"seed {seeds[0]}"])


# Parts of the page ----------------------------------------------------------------------------------------------------


def _case(results: Mapping[str, Any], case: str, drawn: Sequence[Figure]) -> dict[str, Any]:
    """The table and the figures of a case."""
    rows = [row for row in results["rows"] if row["case"] == case]
    style, axes = line_styles(results), [name for name in place_columns(results) if name != "case"]
    lines: list[dict[str, Any]] = []
    score = label_of(results["compared_by"])
    for row, numbers in zip(rows, table_rows(rows, results["compared_by"]), strict=True):
        cells = {name: (text, row["axes"].get(name)) for name, text in place_of(row, axes).items()} | numbers
        lines.append(
            {
                "method": row["method"],
                "style": style[row["name"]],
                "failed": failures_text(row),
                "heads": ["method", *cells],
                "cells": [
                    (text, "" if finite(z) is None else z, row["standing"] * (name == score))
                    for name, (text, z) in cells.items()
                ],
            }
        )
    return {
        "name": case,
        "settings": ", ".join(f"{key} {z}" for key, z in results["cases"][case].items()) if case else "",
        "heads": lines[0]["heads"],
        "lines": lines,
        "notes": " ".join(_notes(results, rows)),
        "figures": [one for one in drawn if one.case == case and not one.name.startswith("choice-")],
    }


def _notes(results: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """What a reader of a case's table must know."""
    notes = []
    if any(row["targets"] for row in rows):
        notes.append("Floats: up and down, per participating client, until the target (4 bytes each).")
        notes.append(f"{not_reached_note(rows)}.")
        if any(row.get("cost") is not None for row in rows):
            notes.append("Paper's cost: in the units in which the paper counts communication.")
    notes += [text for text in (standing_note(results), results["significance"]) if text and len(rows) > 1]
    if any(row["dropped"] for row in rows):
        notes.append(
            "Dropped answers: uploads per run that were lost because a client failed or sent numbers that are not finite. "
            "metrics.jsonl names the clients and the reasons."
        )
    if (every := max(row["evaluate_every"] for row in rows)) > 1:
        notes.append(f"Accuracy is measured every {every} rounds.")
    if results["axes"] and len(rows) > MANY:
        notes.append(
            f"Curves of {len(rows)} lines could not be told apart and are left out; metrics.jsonl of every run has them."
        )
    return notes


def _robustness(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Lines of a table, without the columns that are empty in all of them."""
    lines = [
        {
            "method": one["method"],
            "case": one["case"],
            "at": ", ".join(f"{key} = {_word(z, key)}" for key, z in one["at"].items()),
            "best final accuracy": f"{one['best']:.3f}",
            "within 5 % of it": robustness_text(one),
        }
        for one in results["robustness"]
    ]
    return [{name: z for name, z in line.items() if any(other[name] for other in lines)} for line in lines]


def _incomplete(results: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Two lists: runs that failed, and runs of a study under way that are still to come."""
    failed, missing = [], []
    for row in results["rows"]:
        failed += [(f"{row['name']}, seed {seed}", f": {why}") for seed, why in row["errors"].items() if why != NOT_RUN]
        if seeds := [str(seed) for seed, why in row["errors"].items() if why == NOT_RUN]:
            missing.append((row["name"], f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"))
    return [("Runs that failed", failed), ("Runs that are not complete yet", missing)]


def _search_title(search: Mapping[str, Any]) -> str:
    """What was searched, where, and the length of the trials where it differs from that of the runs."""
    by = "the validation score at their end" if search["way"] == "fair" else search["metric"]
    parts = [f"{search['name']}: {len(search['trials'])} trials, seed {search['seed']}, by {by}"]
    if "case" in search:
        parts[0] = parts[0].removeprefix(f"{search['case']} | ")
        parts.append(f"searched in {search['case']}, used in all cases")
    parts += [f"{search['rounds']} round{'s' * (search['rounds'] != 1)} each"] if "rounds" in search else []
    parts += [f"evaluated every {search['every']} rounds"] if "every" in search else []
    return "; ".join(parts)


def _score(trial: Mapping[str, Any]) -> str:
    if trial["error"] is not None:
        return "not complete" if trial["error"] == NOT_RUN else "failed"
    return "none" if trial["score"] is None else format(trial["score"], ".4g")
