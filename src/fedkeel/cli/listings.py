"""The lists of the command line as JSON, for programs."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.data.federation import Federation


def print_json(content: Any) -> None:
    from fedkeel.study.results.numbers import finite

    print(json.dumps(finite(content), indent=1, allow_nan=False))


def method_facts(name: str) -> dict[str, Any]:
    """What `fedkeel algorithms NAME` shows."""
    from fedkeel.cli.tables import costs
    from fedkeel.core.algorithm import lookup
    from fedkeel.core.hyperparameters import allowed

    kind = lookup(name)
    settings = [
        {
            "name": field.name,
            "default": None if field.default is dataclasses.MISSING else field.default,
            "allowed": allowed(field),
            "grid": list(field.metadata.get("grid", ())),
            "meaning": field.metadata.get("doc", ""),
        }
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
    ]
    about = {key: list(z) if isinstance(z, tuple) else z for key, z in dataclasses.asdict(kind.facts).items()}
    text = inspect.cleandoc(kind.__doc__ or "")
    return {"name": kind.name, "about": text, **about, "floats": costs(kind), "hyperparameters": settings}


def data_sets(data_dir: str | None) -> list[dict[str, Any]]:
    """What `fedkeel datasets` lists."""
    from fedkeel.cli.tables import data_set_rows

    columns = ("name", "about", "size", "here", "where")
    return [dict(zip(columns, row, strict=True)) for row in data_set_rows(data_dir)]


def split_facts(fed: Federation, plot: Path | None) -> dict[str, Any]:
    """What `fedkeel datasets show` says: numbers of every client, and its samples of every class."""
    from fedkeel.cli.tables import client_statistics
    from fedkeel.data.label_plot import write_bubbles

    counts = fed.label_counts(fed.classes or int(fed.y.max()) + 1)
    if plot is not None:
        write_bubbles(counts, plot, ", ".join(f"{key} {value}" for key, value in fed.origin.items()))
    clients = {name.replace(" ", "_"): values.tolist() for name, values in client_statistics(fed, counts).items()}
    return {"split": fed.origin, "clients": clients, "counts": counts.tolist()}
