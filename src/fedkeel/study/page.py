"""The comparison as one HTML file: it needs no network, follows the reader's light or dark theme and any screen width."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart, without their yellow (invisible on white); the
# dashes carry the same information a second time, and 7 x 6 of them are all different.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C8C8C")
DASHES = {"solid": "", "dash": "8 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdash": "13 4", "longdashdot": "13 3 2 3"}


def style(number: int) -> tuple[str, str]:
    """(colour, dash) of a method's line."""
    return COLOURS[number % len(COLOURS)], list(DASHES)[number % len(DASHES)]


def page(results: Mapping[str, Any]) -> str:
    """The page of what `compare` found (the content of its results.json)."""
    from plotly.offline import get_plotlyjs

    figures = [
        {"id": "rounds", "data": _traces(results["curves"], "round"), "x": "round"},
        {"id": "floats", "data": _traces(results["curves"], "floats"), "x": "floats up and down per participating client"},
    ]
    parts = {
        "title": escape(_title(results["task"])),
        "subtitle": escape(_subtitle(results)),
        "table": _table(results),
        "note": _note(results),
        "failures": _failures(results),
        "settings": _pairs(results["task"]),
        "methods": "".join(
            f"<tr><th scope=row>{escape(name)}</th><td>{_inline(values)}</td></tr>"
            for name, values in results["methods"].items()
        ),
        "versions": _pairs(results["versions"]),
        "command": escape(results["command"] or "made from Python: fedkeel.study.compare.compare(...)"),
        "figures": json.dumps({"figures": figures, "target": results["target"]}).replace("</", "<\\/"),
        "plotly": get_plotlyjs(),
    }
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    head, *rest = text.split("{{")  # not str.replace in turn: what one part contains must not be taken for a placeholder
    return head + "".join(parts[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def _title(task: Mapping[str, Any]) -> str:
    options = [f"{key} {task[key]}" for key in ("concentration", "per_client") if key in task]
    names = [str(task[key]) for key in ("data", "split") if key in task]
    names += [f"({', '.join(options)})"] * bool(options) + [f"{task['clients']} clients"] * ("clients" in task)
    return ", ".join(names)


def _subtitle(results: Mapping[str, Any]) -> str:
    task, seeds = results["task"], results["seeds"]
    task = {"model": "", "rounds": "several", "cohort": "some"} | dict(task)
    share = f"{task['cohort']:.0%} of the" if isinstance(task["cohort"], float) else str(task["cohort"])
    many = f"mean over seeds {', '.join(map(str, seeds))}; ± and bands: standard deviation"
    return f"{task['model']}, {task['rounds']} rounds, {share} clients a round; " + (
        many if len(seeds) > 1 else f"seed {seeds[0]}"
    )


def _traces(curves: Mapping[str, Any], x: str) -> list[dict[str, Any]]:
    """A mean line per method and, where there are several seeds, a band of one standard deviation around it."""
    traces: list[dict[str, Any]] = []
    for number, (name, curve) in enumerate(curves.items()):
        by_round = list(zip(*curve["accuracy"].values(), strict=True))
        if not by_round:
            continue
        colour, dash = style(number)
        means = [statistics.fmean(z) for z in by_round]
        shared = {"x": curve[x], "type": "scatter", "mode": "lines", "name": name, "legendgroup": name}
        if len(by_round[0]) > 1:
            spreads = [statistics.stdev(z) for z in by_round]
            edge = {**shared, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            low = [a - b for a, b in zip(means, spreads, strict=True)]
            high = [a + b for a, b in zip(means, spreads, strict=True)]
            traces.append({**edge, "y": low})
            traces.append({**edge, "y": high, "fill": "tonexty", "fillcolor": _faint(colour)})
        traces.append({**shared, "y": means, "line": {"color": colour, "dash": dash, "width": 2.2}})
    return traces


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _table(results: Mapping[str, Any]) -> str:
    from fedkeel.study.cells import cells

    rows = [cells(row, row["targets"]) for row in results["rows"]]
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in rows[0])
    body = []
    for number, row in enumerate(rows):
        name, *rest = row.values()
        colour, dash = style(number)
        line = f"<line x2='34' y1='4' y2='4' stroke='{colour}' stroke-width='3' stroke-dasharray='{DASHES[dash]}'/>"
        key = f"<svg width='34' height='8' aria-hidden='true'>{line}</svg>"
        body.append(f"<tr><th scope=row>{key}{escape(name)}</th>" + "".join(f"<td>{escape(z)}</td>" for z in rest) + "</tr>")
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"


def _note(results: Mapping[str, Any]) -> str:
    if results["target"] is None:
        return ""
    return (
        "<p class=note>Floats: up and down, per participating client, until the target. "
        f"&gt;{results['rows'][0]['rounds']}: not reached by all seeds (2/3: by two of three).</p>"
    )


def _failures(results: Mapping[str, Any]) -> str:
    failed = [(row["method"], seed, why) for row in results["rows"] for seed, why in row["errors"].items()]
    if not failed:
        return ""
    items = "".join(f"<li><b>{escape(name)}, seed {seed}</b>: {escape(why)}</li>" for name, seed, why in failed)
    return f"<section class=failed><h2>Runs that failed</h2><ul>{items}</ul></section>"


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(str(value))}</dd></div>" for key, value in values.items())


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{escape(key)} = {escape(str(value))}" for key, value in values.items())
