"""Tables and figures of the papers as study files: recipes/PAPER.toml, expanded to what `Study.read` takes.

A file of recipes has settings of all its recipes on top, a library of [methods.NAME] and [[cases]], and a table
[recipes.NAME] for each: title, settings, `use` (names of methods), `columns` (names of cases), `extends` (another recipe,
whose runs it shares), `note` (text for this recipe, after the file's `about`), and any other key of a study file.
[small] of the file and `small` of a recipe say what `--scale small` changes. [others] says why a table or figure of the
paper has no recipe.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.errors import nearest
from fedkeel.files import read_toml
from fedkeel.runs.config import SETTINGS
from fedkeel.study.changes import choose_cases
from fedkeel.study.file import check_targets, override
from fedkeel.study.running.plan import size
from fedkeel.study.study import Study

FOLDER = Path(__file__).parent
SCALES = ("paper", "small")


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    file: dict[str, Any]  # what `Study.read` takes
    runs: str  # the recipe whose directory has the runs


@cache
def _papers() -> dict[str, dict[str, Any]]:
    return {path.stem: read_toml(path) for path in sorted(FOLDER.glob("*.toml"))}


def names() -> list[str]:
    return [f"{paper}/{name}" for paper, content in _papers().items() for name in content["recipes"]]


def read(name: str, scale: str = "paper") -> Recipe:
    """The recipe `paper/name`, at the paper's scale or a small one."""
    paper, _, table_name = name.partition("/")
    if name not in names():
        why = _papers().get(paper, {}).get("others", {}).get(table_name)
        raise ValueError(f"recipe: {name} {why}" if why else f"recipe: unknown name {name!r}{nearest(name, names())}")
    if scale not in SCALES:
        raise ValueError(f"scale = {scale!r} is not allowed; it must be {' or '.join(SCALES)}")
    content = copy.deepcopy(_papers()[paper])
    table = _extended(content["recipes"], table_name)
    runs, note = table.pop("runs", table_name), table.pop("note", "")
    shared = {key: z for key, z in content.items() if key not in ("recipes", "others", "methods", "cases", "small")}
    file = shared | {key: z for key, z in table.items() if key not in ("use", "columns", "methods", "small")}
    file["about"] = " ".join(part for part in (file.get("about", ""), note) if part)
    file["methods"] = _picked(content.get("methods", {}), table)
    if "columns" in table:
        library = {case["name"]: case for case in content.get("cases", [])}
        file["cases"] = [library[column] for column in table["columns"]]
        for case in file["cases"]:  # without the methods that this recipe does not have
            case["methods"] = {z: v for z, v in case.get("methods", {}).items() if z in file["methods"]}
            for key in {"target", "seeds"} & set(table):  # Those of the recipe win, as its settings do below.
                case.pop(key, None)
    file = override(file, {key: z for key, z in table.items() if key in SETTINGS})  # also in the cases
    if scale == "small":
        file = shrunk(file, content.get("small", {}) | table.get("small", {}))
    return Recipe(name, file["title"], file, f"{paper}/{runs}")


def _extended(recipes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The table of a recipe. Keys that it does not have come from the recipe that it extends."""
    table = dict(recipes[name])
    if "extends" not in table:
        return table
    parent = table.pop("extends")
    base = _extended(recipes, parent)
    base.pop("paper", None)  # The numbers of the paper differ from table to table.
    return {"runs": parent} | base | table


def _picked(library: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The methods of a recipe: those that it uses from the library, with its changes."""
    changes = table.get("methods", {})
    used = table.get("use", list(changes) or list(library))
    return {name: library.get(name, {}) | changes.get(name, {}) for name in used}


def shrunk(file: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe for a laptop. small: what changes, both keys of the study (seeds, cases) and settings of runs."""
    small = dict(small)
    of_study = {key: small.pop(key) for key in ("seeds", "target", "sweep", "search") if key in small}
    kept, methods = ",".join(small.pop("cases", [])), small.pop("methods", {})
    settings = {key: None if z == "none" else z for key, z in small.items()}
    file = override(choose_cases(dict(file), kept), settings)
    for case in file.get("cases", []):
        if "target" in of_study:
            case.pop("target", None)
    methods = {name: values for name, values in methods.items() if name in file["methods"]}
    for table in file.get("cases") or [file]:  # in the cases, if there are some: their values win over those of the file
        old = table.get("methods", {})
        table["methods"] = old | {name: old.get(name, {}) | values for name, values in methods.items()}
    return _with_scale_in_text(file | of_study)


def _with_scale_in_text(file: Mapping[str, Any]) -> dict[str, Any]:
    """A small recipe whose title, text and tables say that it is small."""
    swept = file.get("sweep", {})
    words = [str(file[key]) for key in ("data", "model") if key not in swept]
    words += [_counted(file["rounds"], "round"), _counted(file["seeds"], "seed")]
    if goals := check_targets(file.get("target")):
        words.append(f"target {' and '.join(map(str, goals))}")
    about = f"Small scale ({', '.join(words)}): shows that it works, its numbers are not comparable with the paper's. "
    paper = [
        one | {"where": f"{one['where']} (at the paper's scale: not comparable)", "comparable": False}
        for one in file.get("paper", [])
    ]
    return dict(file) | {
        "title": f"{file['title']} (small scale)",
        "about": f"{about}What follows is of the paper's scale. {file['about']}",
        "paper": paper,
    }


def _counted(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number} {what}s"


def listed() -> list[tuple[str, str, str, str]]:
    """(name, title, number of runs, number of trials) of all recipes."""
    rows = []
    for name in names():
        recipe = read(name)
        study = Study.read(recipe.file)
        count = sum(len(branch.seeds) for branch in study.branches)
        rows.append((name, recipe.title, str(count), str(size(study)[0] - count)))
    return rows
