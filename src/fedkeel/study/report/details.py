"""The lower part of a study's page: robustness, failures, searches, settings and hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from fedkeel.study.report.table_text import robust_over
from fedkeel.study.results.numbers import NOT_RUN
from fedkeel.wording import value_text


def robustness(results: Mapping[str, Any]) -> str:
    if not results["robustness"]:
        return ""
    lines = [
        {
            "method": escape(one["method"]),
            "case": escape(one["case"]),
            "at": inline(one["at"]),
            "best final accuracy": f"{one['best']:.3f}",
            "within 5 % of it": escape(robust_over(one)),
        }
        for one in results["robustness"]
    ]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    head = f"<tr>{''.join(f'<th scope=col>{name}</th>' for name in names)}</tr>"
    body = "".join(
        f"<tr><th scope=row>{line['method']}</th>{''.join(f'<td>{line[name]}</td>' for name in names[1:])}</tr>"
        for line in lines
    )
    table = f"<table class=summary><thead>{head}</thead><tbody>{body}</tbody></table>"
    note = (
        "<p class=note>In steps of the values that were tried; at least: they end before it does. A seed that failed counts "
        "as 0.</p>"
    )
    return f"<section><h2>Robustness</h2><div class=scroll>{table}</div>{note}</section>"


def failures(results: Mapping[str, Any]) -> str:
    """Two lists: runs with an error, and those of a study under way that are still to come."""
    failed, missing, blocks = [], [], []
    for row in results["rows"]:
        failed += [(f"{row['name']}, seed {seed}", f": {why}") for seed, why in row["errors"].items() if why != NOT_RUN]
        if seeds := [str(seed) for seed, why in row["errors"].items() if why == NOT_RUN]:
            missing.append((row["name"], f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"))
    for title, runs in (("Runs that failed", failed), ("Runs that are not complete yet", missing)):
        items = "".join(f"<li><b>{escape(name)}</b>{escape(why)}</li>" for name, why in runs)
        blocks += [f"<section class=failed><h2>{title}</h2><ul>{items}</ul></section>"] if runs else []
    return "".join(blocks)


def search(results: Mapping[str, Any]) -> str:
    """What was tried on the seed of the search, and what was chosen."""
    blocks = []
    for one in results["search"]:
        rows = "".join(
            f"<tr class={'chosen' if trial['chosen'] else 'tried'}><td>"
            + inline({key: z for key, z in trial.items() if key not in ("score", "error", "chosen")})
            + f"</td><td>{_score(trial)}</td></tr>"
            for trial in one["trials"]
        )
        note = f"<p class=note>{escape(one['note'])}</p>" if one["note"] else ""
        blocks.append(
            f"<details><summary>{escape(_how_searched(one))}</summary>{note}"
            f"<table class=trials><tbody>{rows}</tbody></table></details>"
        )
    return f"<section class=search><h2>Search of hyper-parameters</h2>{''.join(blocks)}</section>" if blocks else ""


def _how_searched(one: Mapping[str, Any]) -> str:
    """What was searched, where, and by how long trials where these are not as long as the runs that count."""
    told = [f"{one['name']}: {len(one['trials'])} trials, seed {one['seed']}, by {one['metric']}"]
    if "case" in one:
        told[0] = told[0].removeprefix(f"{one['case']} | ")
        told.append(f"searched in {one['case']}, used in all cases")
    told += [f"{one['rounds']} round{'s' * (one['rounds'] != 1)} each"] if "rounds" in one else []
    told += [f"evaluated every {one['every']} rounds"] if "every" in one else []
    return "; ".join(told)


def _score(trial: Mapping[str, Any]) -> str:
    if trial["error"] is not None:
        return "not complete" if trial["error"] == NOT_RUN else "failed"
    return "none" if trial["score"] is None else format(trial["score"], ".4g")


def methods(results: Mapping[str, Any]) -> str:
    """Hyper-parameters of every line and settings of its own; first the algorithm, where the line has another name."""
    lines = []
    for row in results["rows"]:
        label = f"{row['algorithm']}: " * (row["algorithm"] != row["method"])
        values = inline(results["methods"][row["name"]])
        lines.append(f"<tr><th scope=row>{escape(row['name'])}</th><td>{escape(label)}{values}</td></tr>")
    return "".join(lines)


def pairs(values: Mapping[str, Any]) -> str:
    return "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(_word(key, z))}</dd></div>" for key, z in values.items())


def inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{escape(key)} = {escape(_word(key, value))}" for key, value in values.items())


def _word(key: str, value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else value_text(value, key)
