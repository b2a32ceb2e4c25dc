"""Options of the command line as changes to the content of a study file. An option wins over all parts of the file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.core.spelling import parts_of
from fedkeel.engine.state.directory import HOW
from fedkeel.runs.config import REPLACES, SETTINGS, hyperparameters_from
from fedkeel.study.results.numbers import of_target
from fedkeel.wording import literal, value_text

File = dict[str, Any]
# Settings whose values are names.
WORDS = [
    name
    for name, about in SETTINGS.items()
    if isinstance(about.metadata["example"] if about.default is None else about.default, str)
]

SAME_TASK = (
    "seeds",
    "seed",
    "evaluate_every",
    "metrics",
    "device",
    "devices",
)  # A change of these does not make another task.


def refuse_swept(file: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuses settings that an axis of the sweep would replace."""
    tables = [{}, *file.get("methods", {}).values()]
    for key, value in settings.items():
        if axis := _axis_of(key, tables, file):
            raise ValueError(f"{key} = {value!r} is not allowed: {_instead(axis)}")


def _axis_of(key: str, tables: Sequence[Mapping[str, Any]], file: Mapping[str, Any]) -> str | None:
    """The axis that replaces this setting in a method with one of these tables."""
    sweep: Mapping[str, Any] = file.get("sweep", {})
    for axis in sweep:
        names = {table.get("over", {}).get(axis, axis) for table in tables}
        if key in names.union(*(REPLACES.get(name, ()) for name in names)):
            return axis
    return None


def _instead(axis: str) -> str:
    return f"the study sweeps over {axis}; --over {axis}=VALUES (of sweep and reproduce) gives that axis other values"


def set_values(file: File, changes: Sequence[str]) -> File:
    """Hyper-parameters of --set METHOD.NAME=VALUE. Several values, joined by commas, are a grid to search."""
    methods = file["methods"]
    for change in changes:
        # A label may contain dots, and may be the beginning of another label.
        name = max((z for z in methods if change.startswith(f"{z}.")), key=len, default=change.partition(".")[0])
        key, equals, text = change.removeprefix(f"{name}.").partition("=")
        if "." not in change or not equals:
            raise ValueError(f"set = {change!r} is not allowed; it must be METHOD.NAME=VALUE, for example fedlada.lr=0.01")
        if name not in methods:
            raise ValueError(f"set = {change!r} is not allowed; {name} is not among the methods: {', '.join(methods)}")
        tables = [methods[name]] + [case["methods"][name] for case in file["cases"] if name in case["methods"]]
        if axis := _axis_of(key.replace("-", "_"), tables, file):
            raise ValueError(f"set = {change!r} is not allowed: {_instead(axis)}")
        tried = [hyperparameters_from(methods[name].get("algorithm", name), [f"{key}={z}"]) for z in text.split(",")]
        one_value = len(tried) == 1 and not isinstance(SETTINGS[key].default if key in SETTINGS else None, tuple)
        values = tried[0] if one_value else {known: [one[known] for one in tried] for known in tried[0]}
        methods = methods | {name: methods[name] | values}
        for case in file["cases"]:
            mine = case["methods"].pop(name, {})
            mine = {key: z for key, z in mine.items() if key not in values}
            # Otherwise the case's value for all methods would win.
            mine |= {key: z for key, z in values.items() if key in case}
            case["methods"] |= {name: mine} if mine else {}
    return file | {"methods": methods}


def choose_cases(file: File, patterns: str) -> File:
    """The cases whose names fit one of the patterns of --cases, joined by commas.

    A pattern has a `*`, or is made of whole words of the name: `cifar-10` does not mean CIFAR-100.
    """
    wanted = [z.strip().lower() for z in patterns.split(",") if z.strip()]
    if not patterns:
        return file
    names = [case["name"] for case in file.get("cases", [])]
    kept = [name for name in names if any(_fits(name.lower(), pattern) for pattern in wanted)]
    if not kept:
        known = ", ".join(names) or "there are none in this study"
        raise ValueError(f"cases = {patterns!r} is not allowed; it must fit one of: {known}")
    paper = [_at_cases(one, names, kept) for one in file.get("paper", [])]
    search = dict(file.get("search", {}))
    if search.get("case") not in (None, *kept):
        search["case"] = kept[0]
    return file | {"cases": [z for z in file["cases"] if z["name"] in kept], "paper": paper, "search": search}


def _fits(name: str, pattern: str) -> bool:
    if "*" in pattern:
        return name == pattern or fnmatch.fnmatch(name, pattern)
    return re.search(rf"(?<!\w){re.escape(pattern)}(?!\w)", name) is not None


def _at_cases(paper: Mapping[str, Any], names: Sequence[str], kept: Sequence[str]) -> File:
    """The numbers of a paper for the cases that are kept."""
    at = paper.get("at") or list(names)
    keep = [i for i, name in enumerate(at) if name in kept or name not in names]
    values = {method: [z[i] for i in keep] for method, z in paper["values"].items()}
    return dict(paper) | {"at": [at[i] for i in keep], "values": values}


def add_axes(file: File, over: Sequence[str]) -> File:
    """Axes of --over NAME=VALUES: values joined by commas, or FROM:TO:POINTS-PER-DECADE."""
    sweep, given = dict(file.get("sweep", {})), set()
    for one in over:
        name, equals, text = one.partition("=")
        name, example = name.replace("-", "_"), "for example lr=0.01,0.1 or lr=1e-4:1:3"
        if not name or not equals or not text:
            raise ValueError(f"over = {one!r} is not allowed; it must be NAME=VALUES, {example}")
        if name in given:
            raise ValueError(f"over = {one!r} is not allowed beside another axis {name}; give it all its values at once")
        given.add(name)
        if ":" in text and name not in WORDS:  # a model may be package.module:factory
            parts = [literal(z) for z in text.split(":")]
            if len(parts) not in (2, 3) or not all(isinstance(z, int | float) for z in parts):
                raise ValueError(
                    f"over = {one!r} is not allowed; a range is FROM:TO or FROM:TO:POINTS-PER-DECADE, {example}"
                )
            density = {"per_decade": parts[2]} if len(parts) == 3 else {}
            sweep[name] = {"from": float(parts[0]), "to": float(parts[1])} | density
        else:
            sweep[name] = [literal(z) for z in (parts_of(text) if name in WORDS else text.split(","))]
        for old in REPLACES.get(name, ()):  # an axis of the file that this one replaces
            sweep.pop(old, None)
    return file | {"sweep": sweep} if sweep else file


def tell_changes(file: File, settings: Mapping[str, Any], others: Sequence[str] = ()) -> File:
    """Says in the text of a recipe what options have changed.

    If an option makes it another task, our numbers are marked as not comparable with the paper's. An option that the text
    of the recipe offers does not. others: the values of --set, --over and --search.
    """
    shown = {key: z for key, z in settings.items() if key not in HOW and z is not None}
    changes = ", ".join(
        [f"{key} = {value_text(z)}" for key, z in shown.items()] + [z.replace("=", " = ", 1) for z in others]
    )
    if not changes:
        return file
    text = file.get("about", "")
    about = f"Changed by options, in place of what is said below: {changes}. {text}"
    task = {
        key
        for key, z in shown.items()
        if key not in SAME_TASK and f"`--{key.replace('_', '-')} {value_text(z)}`" not in text
    }
    paper = [
        one | ({"comparable": False} if task - {"rounds" if of_target(one["metric"]) else "target"} else {})
        for one in file.get("paper", [])
    ]
    return file | {"about": about.strip(), "paper": paper}


def change_search(file: File, changes: Sequence[str]) -> File:
    """Changes how grids are searched, by --search KEY=VALUE."""
    search = dict(file.get("search", {}))
    for one in changes:
        key, equals, text = one.partition("=")
        if not equals:
            raise ValueError(f"search = {one!r} is not allowed; it must be KEY=VALUE, for example way=grid or rounds=100")
        search[key] = text if key in ("case", "way", "metric") else literal(text)
    return file | {"search": search} if search else file
