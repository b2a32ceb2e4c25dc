"""What compare, sweep and reproduce print: a table per case, the paper's numbers, failures and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkeel.cli.tables import console, table
from fedkeel.study.report.table_text import (
    beside_paper,
    not_reached_note,
    place_columns,
    place_of,
    robustness_text,
    screen_row,
)
from fedkeel.wording import value_text

Row = Mapping[str, Any]


def comparison(results: Mapping[str, Any], out: Path) -> None:
    """The end of `fedkeel compare`, `sweep` and `reproduce`."""
    rows, screen = results["rows"], console()
    axes = [name for name in place_columns(results) if name != "case"]
    for case in results["cases"]:
        mine = [row for row in rows if row["case"] == case]
        if case:
            screen.print(f"\n{case}", style="bold")
        _summary(mine, axes)
    if any(row["targets"] for row in rows):
        screen.print(f"floats: up and down, per participating client, until the target; {not_reached_note(rows)}")
    for paper in results["paper"]:
        _beside_paper(rows, paper)
    for one in results["robustness"]:
        at = ", ".join([one["case"]] * bool(one["case"]) + [f"{key} {z}" for key, z in one["at"].items()])
        who = f"{one['method']} ({at})" if at else one["method"]
        screen.print(f"{who}: within 5 % of its best {robustness_text(one)}")
    for one in results["search"]:
        chosen = [trial for trial in one["trials"] if trial["chosen"]]
        values = {key: z for trial in chosen for key, z in trial.items() if key not in ("score", "error", "chosen")}
        chosen_text = one["note"] or ", ".join(f"{key} {value_text(z, key)}" for key, z in values.items())
        if chosen_text:
            screen.print(f"search: {one['name']}: {chosen_text}", soft_wrap=True)
    for row in [row for row in rows if row["dropped"]]:
        screen.print(
            f"dropped: {row['name']}: {row['dropped']:.4g} answers of clients a run; metrics.jsonl says whose and why",
            soft_wrap=True,
        )
    for row in rows:
        for seed, why in row["errors"].items():
            screen.print(f"failed: {row['name']} seed {seed}: {why}", soft_wrap=True)
    screen.print(f"files: {out / 'report.html'}, table.csv, results.json", soft_wrap=True)


def _summary(rows: Sequence[Row], axes: Sequence[str]) -> None:
    shown = []
    for row in rows:
        line = screen_row(row, row["targets"])
        shown.append({"method": line.pop("method"), **place_of(row, axes), **line})
    made = table(*(name if name == "method" else ">" + name.replace(" ", "\n", 1) for name in shown[0]))
    short = all(len(line["method"].partition("\n")[0]) <= 20 for line in shown)
    for column in made.columns:  # On a narrow screen, numbers are broken at ± instead of cut.
        column.no_wrap = short and column is made.columns[0]
    for line in shown:
        made.add_row(*line.values())
    console().print(made)


def _beside_paper(rows: Sequence[Row], paper: Mapping[str, Any]) -> None:
    """Two lines per method: ours and the paper's."""
    found = beside_paper(rows, paper)
    if not found:
        return
    _, *columns = found["heads"]
    made = table("method", "", *(f">{column}" for column in columns))
    for column in made.columns:
        column.no_wrap = False
    for method, cells in found["lines"].items():
        made.add_row(method, "ours", *(f"{z['ours']}{' ≠' if z['differs'] else ''}" if z else "" for z in cells))
        made.add_row("", "paper", *(str(z["theirs"]) if z else "" for z in cells), style="dim")
    console().print(f"\n{found['metric']}{', %,' if found['percent'] else ''} beside {found['where']}", style="bold")
    console().print(made)
    if found["note"]:
        console().print(found["note"])


def recipe_table(recipes: Sequence[tuple[str, str, str, str]]) -> None:
    """All recipes: (name, title, number of runs, number of trials)."""
    shown = table("name", "what it is", ">runs", ">trials")
    shown.columns[0].no_wrap = True
    for row in recipes:
        shown.add_row(*row)
    console().print(shown)
    console().print("trials: runs that search for hyper-parameters, before the runs that count.")
    console().print(
        "`fedkeel reproduce NAME` runs one at the paper's scale, `--scale small` on a laptop, `--show` prints it."
    )
