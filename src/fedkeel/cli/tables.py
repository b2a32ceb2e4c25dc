"""What the command line prints: tables of methods, data sets and studies, a page per method."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import numpy as np

    from fedkeel.core.algorithm import Algorithm
    from fedkeel.data.federation import Federation

Row = Mapping[str, Any]  # of the results of a study
PIPE_WIDTH = 180  # columns if the output goes to a pipe or file: long lines are easier to search than wrapped ones
NARROW = 100  # columns below which the table of a study leaves out what the page has
WIDE = 130  # columns from which the table of methods shows everything


def console() -> Console:
    """Prints results, as wide as the terminal. The environment variable COLUMNS overrides that."""
    free = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if free else PIPE_WIDTH, highlight=False, markup=False)


def table(*columns: str) -> Table:
    """A table with one rule under its heading. A column whose name begins with '>' is aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    return made


# Methods --------------------------------------------------------------------------------------------------------------


def costs(kind: type[Algorithm]) -> dict[str, str]:
    """What a method keeps and sends, in units of the model's size d. Counted from its records, as the engine does."""
    import torch

    from fedkeel.core.algorithm import Plan
    from fedkeel.core.flat import Layers
    from fedkeel.core.records import down_record, floats, trial_upload

    layers, d = Layers([6000, 4000]), 10000
    algo = kind().plan(Plan(N=10, S=10, K=10, T=100, layers=layers))
    server, memory = algo.init(torch.zeros(d))
    ups = [trial_upload(algo, stage, layers, torch.float32) for stage in ["survey"] * algo.surveys() + ["client"]]
    tracked = kind.facts.tracked
    always = sum(floats(up, without=tracked) for up in ups)
    sometimes = sum(floats(up) for up in ups) - always
    parts = [f"{always / d:.3g}"] * (always > 0) + [f"{sometimes / d:.3g} Y/S".removeprefix("1 ")] * (sometimes > 0)
    down = floats(down_record(algo, server))
    return {"memory": f"{floats(memory) / d:.3g}", "up": " + ".join(parts), "down": f"{down / d:.3g}"}


def algorithm_table() -> None:
    """All methods, grouped by the problem that they solve. A narrow terminal shows fewer columns."""
    from fedkeel.core.algorithm import PROBLEMS, algorithms, lookup

    screen = console()
    wide = screen.width >= WIDE
    columns = ("local optimiser", "correction", "server step") if wide else ("local", "correction")
    shown = table("name", *columns, ">mem", ">up", ">down", ">grad", *(["paper"] if wide else []))
    shown.columns[0].no_wrap = True
    if wide:
        shown.columns[-1].no_wrap, shown.columns[-1].overflow, shown.columns[-1].max_width = True, "ellipsis", 24
    kinds = [lookup(name) for name in algorithms()]
    for problem in (*PROBLEMS, ""):  # a method that does not say what it solves comes last
        group = [kind for kind in kinds if "".join(kind.facts.solves[:1]) == problem]
        if group:
            shown.add_section()
            shown.add_row(problem or "other", style="bold")
        for kind in group:
            facts, cost = kind.facts, costs(kind)
            words = (facts.local, facts.correction, facts.step)[: len(columns)]
            paper = [facts.paper.split(",")[0].split(";")[0]] if wide else []
            shown.add_row(kind.name, *words, cost["memory"], cost["up"], cost["down"], str(facts.gradients), *paper)
    screen.print(shown)
    for problem, meaning in PROBLEMS.items():
        screen.print(f"{problem}: {meaning}.")
    screen.print(
        f"\n{len(kinds)} methods, each in the group of the problem that it is mostly for.\n"
        "A client keeps mem between rounds, sends up and receives down in a round, all in units of "
        "the model's size (Y of the S clients track); grad: gradients per local step.\n"
        "`fedkeel algorithms NAME` shows one method."
    )


def algorithm_page(name: str) -> None:
    """What a user needs to know of one method to choose it and to set its hyper-parameters."""
    import dataclasses

    from fedkeel.core.algorithm import PROBLEMS, lookup
    from fedkeel.core.hyperparameters import allowed

    kind = lookup(name)
    screen, facts, cost = console(), kind.facts, costs(kind)
    screen.print(f"{name}, for {' and '.join(facts.solves)}\n" if facts.solves else f"{name}\n", style="bold")
    for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
        screen.print(" ".join(paragraph.split()) + "\n")
    settings = table("setting", "default", "allowed", "papers' grid", "meaning")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    for field in fields:
        grid = ", ".join(f"{z:g}" for z in field.metadata.get("grid", ()))
        settings.add_row(field.name, _value(field.default), allowed(field), grid or "-", field.metadata.get("doc", ""))
    screen.print(settings)
    lines = {
        "solves": "; ".join(f"{word}: {PROBLEMS[word]}" for word in facts.solves) or "it does not say",
        "family": facts.family,
        "local step": facts.local,
        "correction": facts.correction,
        "server step": facts.step,
        "floats": f"up {cost['up']}, down {cost['down']} a round, a client keeps {cost['memory']} (times the model's size)",
        "gradients": f"{facts.gradients} per local step",
        "unbiased": f"{'yes' if facts.exact else 'no'}: the minimiser of the global loss is {'' if facts.exact else 'not '}"
        "a fixed point when clients differ and take several steps",
        "the same": "; ".join(claim.replace(" ->", " is") for claim in facts.same) or "as no other method here",
        "weights": "uniform only" if facts.uniform else "uniform or samples",
        "paper": facts.paper,
    }
    lined = Table.grid(padding=(0, 2))
    for key, line in lines.items():
        lined.add_row(key, line)
    screen.print(lined)
    given = [field for field in fields if field.default is not None][:2]
    flags = "".join(f" --{field.name.replace('_', '-')} {_value(field.default)}" for field in given)
    screen.print(f"\nfedkeel run --algorithm {name}{flags}", soft_wrap=True)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


# Data -----------------------------------------------------------------------------------------------------------------


def data_set_rows(data_dir: str | None = None) -> list[tuple[str, str, str, str, str]]:
    """(name, what it is, size, is it here, where) of all data sets. Loads none of them."""
    from fedkeel.data.catalogue import CATALOGUE
    from fedkeel.data.load import data_folder, digits, packaged
    from fedkeel.data.named_sets import locate

    folder = data_folder(data_dir)
    about, size = (digits.__doc__ or "").split("; ")
    rows = [("digits", about, size.rstrip("."), "yes", "scikit-learn")]
    for name, source in CATALOGUE.items():
        found = locate(name, folder)
        here, where = "no", f"no; wants {source.wanted}" + (f", or the hub ({source.hub.name})" if source.hub else "")
        if found:
            form, paths = found
            where = str(next(path.parent for path in paths if path)) + (f" ({form.note})" if form.note else "")
            here = "a part" if form.note else "yes"
        rows.append((name, source.about, source.size, here, where))
    return rows + [(name, "Of an installed package.", "", "yes", entry.value) for name, entry in packaged().items()]


def dataset_table(data_dir: str | None = None) -> None:
    """All data sets, and whether their files are on this machine."""
    from fedkeel.data.load import data_folder

    folder, screen = data_folder(data_dir), console()
    wide = screen.width >= WIDE
    shown = table("name", "what it is", *(["size", "where"] if wide else ["here"]))
    shown.columns[0].no_wrap = True
    for name, about, size, here, where in data_set_rows(data_dir):
        shown.add_row(name, about, *([size, where] if wide else [here]))
    screen.print(shown)
    missing = "There is no data directory: give --data-dir or set FEDKEEL_DATA."
    screen.print(f"Looked in the data directory {folder}." if folder else missing)
    screen.print("`fedkeel datasets show NAME` splits one among clients and shows how much they differ.")


def split_table(fed: Federation, plot: Path | None = None) -> None:
    """How much the clients of a split differ: the spread over clients of four numbers per client, and who has which class.

    plot: a file for the picture of the latter.
    """
    import numpy as np

    from fedkeel.data.label_plot import bubbles_text, write_bubbles
    from fedkeel.data.texts import Texts

    screen, classes = console(), fed.classes or int(fed.y.max()) + 1
    counts = fed.label_counts(classes)
    if plot is not None:
        write_bubbles(counts, plot, ", ".join(f"{key} {value}" for key, value in fed.origin.items()))
    shape = "text" if isinstance(fed.x, Texts) else f"shape {' x '.join(map(str, fed.shape))}"
    tested = f" and {len(fed.test[1]):,} test" if fed.test else ""
    screen.print(f"{fed.origin['data']}: {len(fed.y):,} training{tested} samples of {shape}, {classes} classes")
    screen.print(", ".join(f"{key} {value}" for key, value in fed.origin.items() if key != "data"))
    shown = table("per client", ">least", ">25 %", ">median", ">75 %", ">most")
    for name, values in client_statistics(fed, counts).items():
        digits = ".0f" if values.dtype.kind == "i" else ".3f"
        shown.add_row(name, *(f"{z:{digits}}" for z in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))))
    screen.print(shown)
    screen.print(
        f"label entropy: in bits; {np.log2(classes):.3f} if all classes are equally frequent, 0 for one class. "
        "total variation: distance of a client's label frequencies from those of all data, 0 (alike) to 1.\n"
    )
    screen.print(bubbles_text(counts, screen.width), no_wrap=True, crop=False)
    if plot is not None:
        screen.print(f"files: {plot}", soft_wrap=True)


def client_statistics(fed: Federation, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Samples, classes, label entropy and total-variation distance of every client, [N] each; counts: [N, C]."""
    import numpy as np

    p = counts / counts.sum(1, keepdims=True)
    entropy = -np.sum(p * np.log2(np.where(p > 0, p, 1)), axis=1)
    distance = np.abs(p - counts.sum(0) / counts.sum()).sum(1) / 2
    return {
        "samples": fed.sizes,
        "classes": (counts > 0).sum(1),
        "label entropy": np.abs(entropy),
        "total variation": distance,
    }


# Studies --------------------------------------------------------------------------------------------------------------


def comparison(results: Mapping[str, Any], out: Path) -> None:
    """The end of `fedkeel compare`, `sweep` and `reproduce`."""
    from fedkeel.study.report.table_text import not_reached_note, place_columns, robustness_text, standing_note, tried_values
    from fedkeel.wording import value_text

    rows, screen = results["rows"], console()
    axes = [name for name in place_columns(results) if name != "case"]
    for case in results["cases"]:
        mine = [row for row in rows if row["case"] == case]
        if case:
            screen.print(f"\n{case}", style="bold")
        _summary(mine, axes, results["compared_by"])
    if any(row["targets"] for row in rows):
        screen.print(f"floats: up and down, per participating client, until the target; {not_reached_note(rows)}")
    if text := standing_note(results):
        screen.print(text)
    screen.print(results["tuning"])
    if results["significance"] and len(results["seeds"]) > 1:
        screen.print(results["significance"])
    for paper in results["paper"]:
        _beside_paper(rows, paper)
    for one in results["robustness"]:
        at = ", ".join([one["case"]] * bool(one["case"]) + [f"{key} {z}" for key, z in one["at"].items()])
        who = f"{one['method']} ({at})" if at else one["method"]
        screen.print(f"{who}: within 5 % of its best {robustness_text(one)}")
    for one in results["search"]:
        chosen = [trial for trial in one["trials"] if trial["chosen"]]
        values = {key: z for trial in chosen for key, z in tried_values(trial).items()}
        chosen_text = one["note"] or ", ".join(f"{key} {value_text(z, key)}" for key, z in values.items())
        chosen_text = "; ".join([chosen_text, *(edge for trial in chosen for edge in trial["edges"])])
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


def _summary(rows: Sequence[Row], axes: Sequence[str], compared_by: str) -> None:
    from fedkeel.study.report.table_text import from_best_text, place_of, screen_row

    shown = []
    for row in rows:
        line = screen_row(row, row["targets"])
        if any(z["standing"] for z in rows):
            narrow = console().width < NARROW  # The intervals are on the page, too.
            line["from best"] = from_best_text(row, compared_by.endswith("accuracy"), interval=not narrow)
            line |= {} if narrow else {"group": row["group"]}
        shown.append({"method": line.pop("method"), **place_of(row, axes), **line})
    made = table(*(name if name == "method" else ">" + name.replace(" ", "\n", 1) for name in shown[0]))
    short = all(len(line["method"].partition("\n")[0]) <= 20 for line in shown)
    for column in made.columns:  # On a narrow screen, numbers are broken at ± instead of cut.
        column.no_wrap = short and column is made.columns[0]
    for row, line in zip(rows, shown, strict=True):
        made.add_row(*line.values(), style="bold" if row["standing"] == "best" else None)
    console().print(made)


def _beside_paper(rows: Sequence[Row], paper: Mapping[str, Any]) -> None:
    """Two lines per method: ours and the paper's."""
    from fedkeel.study.report.table_text import beside_paper

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
