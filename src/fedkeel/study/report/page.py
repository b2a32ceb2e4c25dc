"""A study as one HTML file: no network needed; it follows the reader's theme and screen width, and prints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedkeel.study.report import svg
from fedkeel.study.report.details import failures, methods, pairs, robustness, search
from fedkeel.study.report.figures import MANY, looks
from fedkeel.study.report.svg import Figure
from fedkeel.study.report.table_text import (
    APART,
    NOT_COMPARABLE,
    column_of,
    columns_of,
    differs,
    in_paper_units,
    missing,
    not_reached,
    paper_heads,
    place_of,
    table_cells,
)
from fedkeel.study.results.numbers import finite

Row = Mapping[str, Any]


def page(results: Mapping[str, Any], drawn: Sequence[Figure]) -> str:
    """The page of what a study found (the content of its results.json)."""
    parts = {
        "title": escape(results["title"] or _title(results)),
        "subtitle": escape(_subtitle(results)),
        "about": f"<p class=about>{_with_code(results['about'])}</p>" if results["about"] else "",
        "papers": "".join(_beside_paper(results, paper) for paper in results["paper"]),
        "cases": "".join(_case(results, case, drawn) for case in results["cases"]),
        "robustness": robustness(results),
        "failures": failures(results),
        "search": search(results),
        "settings": pairs(results["task"]),
        "methods": methods(results),
        "seeds": ", ".join(map(str, results["seeds"])),
        "versions": pairs(results["versions"]),
        "command": escape(results["command"] or "made from Python: fedkeel.study.compare.compare(...)"),
        "found": json.dumps({_id(z): finite(z.data) for z in drawn if z.data}, allow_nan=False).replace("</", "<\\/"),
        "box": json.dumps([svg.WIDTH, svg.HEIGHT, svg.LEFT, svg.RIGHT, svg.TOP, svg.BOTTOM]),
        "plotstyle": svg.CLASSES,
    }
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    head, *rest = text.split("{{")  # not str.replace in turn: what one part contains must not be taken for a placeholder
    return head + "".join(parts[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def _with_code(text: str) -> str:
    """A text whose `words in backticks` are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _title(results: Mapping[str, Any]) -> str:
    task = results["task"]
    options = [f"{key} {task[key]}" for key in ("concentration", "per_client") if key in task]
    names = [str(task[key]) for key in ("data", "split") if key in task] + options
    return ", ".join([*names, f"{task['clients']} clients"] if "clients" in task else names) or "Comparison"


def _subtitle(results: Mapping[str, Any]) -> str:
    task, seeds = results["task"], results["seeds"]
    parts = [_title(results)] if results["title"] and "data" in task else []  # a title need not name the data
    parts += [str(task["model"])] if "model" in task else []
    parts += [f"{task['rounds']} round{'s' * (task['rounds'] != 1)}"] if "rounds" in task else []
    if "cohort" in task:
        share = f"{task['cohort']:.0%} of the" if isinstance(task["cohort"], float) else str(task["cohort"])
        parts.append(f"{share} client{'s' * (share != '1')} a round")
    many = f"mean over seeds {', '.join(map(str, seeds))}; ± and bands: standard deviation"
    return "; ".join([", ".join(parts)] * bool(parts) + [many if len(seeds) > 1 else f"seed {seeds[0]}"])


# Ours beside the paper's ----------------------------------------------------------------------------------------------


def _beside_paper(results: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    metric = paper["metric"]
    rows = [row for row in results["rows"] if metric in row["paper"]]
    if not rows:
        return ""
    head = "".join(f"<th scope=col>{escape(z)}</th>" for z in ("method", *paper_heads(rows, paper)))
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {column_of(row, paper): row for row in rows if row["method"] == method}
        cells = []
        for z in paper["at"]:
            row = mine.get(z)
            if row is None:
                cells.append("<td></td>")
                continue
            apart = " <b class=alarm>≠</b>" * differs(row, paper)
            ours, theirs = escape(in_paper_units(row, metric)), escape(str(row["paper"][metric]))
            cells.append(f"<td>{ours}{apart}<br><span class=theirs>{theirs}</span></td>")
        body.append(f"<tr><th scope=row>{escape(method)}</th>{''.join(cells)}</tr>")
    note = f"<p class=note>{APART}.</p>" * ("≠" in "".join(body))
    if not paper["comparable"]:
        note = f"<p class=note>{escape(NOT_COMPARABLE.capitalize())}.</p>"
    unit = " (%)" if metric.endswith("accuracy") else ""
    return (
        f"<section><h2>{escape(metric.replace('_', ' ').capitalize())}{unit}: ours, and below it "
        f"{escape(paper['where'] or 'the paper')}</h2><div class=scroll><table class=papers>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{note}</section>"
    )


# Cases ----------------------------------------------------------------------------------------------------------------


def _case(results: Mapping[str, Any], case: str, drawn: Sequence[Figure]) -> str:
    rows = [row for row in results["rows"] if row["case"] == case]
    own = ", ".join(f"{key} {value}" for key, value in results["cases"][case].items()) if case else ""
    notes = []
    if any(row["targets"] for row in rows):
        notes.append("Floats: up and down, per participating client, until the target (4 bytes each).")
        notes.append(f"{not_reached(rows)}.")
        if any(row.get("cost") is not None for row in rows):
            notes.append("Paper's cost: in the units in which the paper counts communication.")
    if any(row["dropped"] for row in rows):
        notes.append(
            "Dropped answers: of clients that failed or sent no numbers, in a run; metrics.jsonl says whose and why."
        )
    if (every := max(row["evaluate_every"] for row in rows)) > 1:
        notes.append(f"Accuracy is measured every {every} rounds.")
    if results["axes"] and len(rows) > MANY:
        notes.append(
            f"Curves of {len(rows)} lines could not be told apart and are left out; metrics.jsonl of every run has them."
        )
    note = f"<p class=note>{escape(' '.join(notes))}</p>" if notes else ""
    shown = [one for one in drawn if one.case == case]
    return (
        f"<section class=case><h2>{escape(case or 'Summary')}</h2>"
        + (f"<p class=note>{escape(own)}</p>" if own else "")
        + f"<div class=scroll><table class=summary>{_table(results, rows)}</table></div>{note}"
        + f"<div class=plots>{''.join(_figure(one) for one in shown)}</div></section>"
    )


def _table(results: Mapping[str, Any], rows: Sequence[Row]) -> str:
    style, axes = looks(results), [name for name in columns_of(results) if name != "case"]
    lines = [
        {name: (text, row["axes"].get(name)) for name, text in place_of(row, axes).items()} | cells
        for row, cells in zip(rows, table_cells(rows), strict=True)
    ]
    head = "".join(f"<th scope=col><button type=button>{escape(name)}</button></th>" for name in ("method", *lines[0]))
    body = []
    for row, line in zip(rows, lines, strict=True):
        failed = f" <span class=alarm>({missing(row)})</span>" if row["errors"] else ""
        method, key = escape(row["method"]), svg.key(style[row["name"]])
        name = f"<th scope=row data-value='{method}'>{key}{method}{failed}</th>"
        values = ["" if finite(z) is None else escape(str(z)) for _, z in line.values()]
        body.append(
            f"<tr>{name}"
            + "".join(f"<td data-value='{v}'>{escape(t)}</td>" for (t, _), v in zip(line.values(), values, strict=True))
            + "</tr>"
        )
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"


def _id(figure: Figure) -> str:
    return f"{figure.case}/{figure.name}"


def _figure(figure: Figure) -> str:
    keys = "".join(
        f"<button type=button data-name='{escape(name)}' aria-pressed=true>{svg.key(number)}{escape(name)}</button>"
        for name, number in figure.legend
    )
    legend = f"<div class=legend>{keys}</div>" if keys else ""
    title, _, note = figure.title.partition("; ")
    caption = escape(title) + (f"<span class=theirs>; {escape(note)}</span>" if note else "")
    return (
        f"<figure data-id='{escape(_id(figure))}'><figcaption>{caption}</figcaption>"
        f"<div class=canvas>{svg.named(figure.inline, figure.title)}</div>{legend}</figure>"
    )
