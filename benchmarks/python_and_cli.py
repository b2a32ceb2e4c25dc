"""Writes docs/python-and-cli.md: every option of the command line and what it is in Python, and the reverse.

The options come from the commands, and the arguments from the signatures of the public functions. What has another name on
the other side is in the tables below. A test (tests/test_python_and_cli.py) fails if something is missing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import fedkeel as fk
from fedkeel.cli.app import app
from fedkeel.runs.config import SETTINGS

PAGE = Path(__file__).parents[1] / "docs" / "python-and-cli.md"
SAME = {"run": "train"}  # command -> public function, where the names differ
FUNCTIONS = [name for name in ("train", "resume", "compare", "sweep", "reproduce", "choose", "check") if name in fk.__all__]

# Settings that are no argument of fk.train.
SETTING_IN_PYTHON = {
    "data": '`fk.load("NAME")`',
    "data_dir": "`fk.load(..., data_dir=)`",
    "augment": "`fk.load(..., augment=)`",
    "split": '`data.split("NAME", ...)`',
    "clients": "`data.split(..., clients=)`",
    "split_seed": "`data.split(..., seed=)`",
    "algorithm": '`fk.algorithm("NAME")`; hyper-parameters: `fk.algorithm("NAME", lr=0.1)`',
    "model": "`fk.train(model, ...)` takes a module or a function that makes one",
}
SPLIT_OPTIONS = ("concentration", "sizes", "beta_a", "beta_b", "per_client")
ANY_SETTING = '`fk.compare("MODEL", "DATA", ..., {}=)`'  # names in Python: every setting is an argument
# Options that are no settings: (command, option) -> Python. "*": of any command.
OPTION_IN_PYTHON = {
    ("*", "fresh"): "`fk.compare(..., fresh=True)`; for one run, `out=` names another directory",
    ("*", "json"): "the lists are Python objects",
    ("*", "algorithms"): "`fk.compare(model, fed, [...])`",
    ("*", "set"): '`fk.compare(..., {"fedavg": {"lr": 0.1}})` or `fk.algorithm("fedavg", lr=0.1)`',
    ("*", "search"): '`fk.compare(..., search={"way": "grid"})`',
    ("*", "over"): '`fk.sweep(..., over={"lr": [0.1, 1]})`',
    ("*", "study"): "a study file has the arguments of `fk.compare`",
    ("*", "ray"): '`fk.compare(..., ray="auto")`',
    ("*", "slurm"): '`fk.compare(..., slurm="...")`',
    ("*", "tensorboard"): '`fk.compare(..., tensorboard="FOLDER")`',
    ("*", "mlflow"): '`fk.compare(..., mlflow="URI")`',
    ("*", "wandb"): '`fk.compare(..., wandb="PROJECT")`',
    ("reproduce", "set"): '`fk.reproduce(..., changes=["fedavg.lr=0.1"])`',
    ("reproduce", "algorithms"): "`fk.reproduce(..., methods=[...])`",
    ("reproduce", "list"): "`fedkeel.study.recipes.read.names()`",
    ("reproduce", "show"): "`fedkeel.study.recipes.read.read(NAME).file`",
    ("reproduce", "name"): '`fk.reproduce("NAME")`',
    ("resume", "directory"): "`fk.resume(path)`",
    ("verify", "directory"): "`fedkeel.deploy.signature.verify(path)`",
    ("verify", "key"): "`fedkeel.deploy.signature.verify(path, key)`",
    ("export", "directory"): "`fk.open(DIRECTORY)`",
    ("export", "path"): "`run.export(FILE)`",
    ("export", "best"): '`run.export(FILE, which="best")`',
    ("report", "directory"): "`fk.StudyResult.read(DIRECTORY)`",
    ("report", "formats"): '`study.plot().savefig("figure.pdf")`',
    ("report", "png"): '`study.plot().savefig("figure.png")`',
    ("algorithms", "name"): "`fk.algorithms()` lists them; `help(type(fk.algorithm(NAME)))`",
    ("algorithms", "conditions"): "`fedkeel.channel.validity.CONDITIONS`",
    ("datasets show", "name"): "`fk.load(NAME).split(...).label_counts(classes)`",
    ("datasets show", "plot"): "`fedkeel.data.label_plot.write_bubbles(counts, path, title)`",
    ("choose", "stateless"): '`fk.choose(..., constraints={"stateless": True})`',
    ("choose", "secure_sums"): '`fk.choose(..., constraints={"secure_sums": True})`',
    ("choose", "floats_per_round"): '`fk.choose(..., constraints={"floats_per_round": 1e6})`',
    ("choose", "gradients_per_step"): '`fk.choose(..., constraints={"gradients_per_step": 1})`',
    ("choose", "memory_per_client"): '`fk.choose(..., constraints={"memory_per_client": 0})`',
    ("check", "name"): '`fk.check("package.module:Class")`',
    ("deploy init", "directory"): "`fedkeel.deploy.project.init(directory, run)`",
    ("deploy init", "from"): "`fedkeel.deploy.project.init(directory, run)`",
    ("deploy init", "method"): "`study.config_of(NAME)`",
    ("deploy picture", "name"): "`fedkeel.deploy.picture.drawing(method)`",
    ("bench", "only"): "only on the command line: it measures whole programs",
    ("bench", "passes"): "only on the command line: it measures whole programs",
    ("bench", "peers"): "only on the command line: it measures whole programs",
    ("", "version"): "`fedkeel.__version__`",
    ("", "debug"): "Python shows tracebacks",
}
# Arguments that no option has -> why, or what takes its place.
ONLY_PYTHON = {
    "fed": "`--data`, `--split`, `--clients`",
    "methods": "`--algorithms`",
    "method": "the argument METHOD",
    "changes": "`--set`",
    "constraints": "`--stateless`, `--secure-sums`, `--floats-per-round`, `--gradients-per-step`, `--memory-per-client`",
    "path": "the argument DIRECTORY",
    "loss": "a Python function; a named task has the loss of its data",
    "step": "a Python function",
    "callbacks": "Python functions; `--tensorboard`, `--mlflow` and `--wandb` get every row",
    "validation": "`--validation`",
    "dtype": "models of the command line are float32",
    "progress": "the command line always shows its progress",
    "resume": "`fedkeel run` always goes on",
    "store": "the command line keeps client memory in the run's directory",
    "config": "the command line records its own settings",
    "remote": "`fedkeel deploy init`",
    "settings": "all options of settings",
    "hyperparameters": "options of their names",
    "name": "the argument NAME",
}


def options() -> Iterator[tuple[str, str, str]]:
    """(command, option or argument, how it is written) of all commands."""

    def of(command: Any, name: str) -> Iterator[tuple[str, str, str]]:
        for one in command.params:
            word = max((z for z in one.opts if z.startswith("--")), key=len, default=one.name)
            written = word if word.startswith("--") else (one.metavar or one.name.upper())
            yield name, word.removeprefix("--").replace("-", "_") if word.startswith("--") else one.name, written
        for child, part in sorted(getattr(command, "commands", {}).items()):
            yield from of(part, f"{name} {child}".strip())

    yield from of(typer.main.get_command(app), "")


def arguments(function: str) -> list[str]:
    return list(inspect.signature(getattr(fk, function)).parameters)


def in_python(command: str, option: str) -> str | None:
    """What an option is in Python; None if nobody has said it."""
    function = SAME.get(command, command)
    if (command, option) in OPTION_IN_PYTHON:
        return OPTION_IN_PYTHON[command, option]
    if function in FUNCTIONS and option in arguments(function):
        return f"`fk.{function}(..., {option}=)`"
    if option in SETTING_IN_PYTHON and option in SETTINGS:
        return SETTING_IN_PYTHON[option]
    if option in SPLIT_OPTIONS:
        return f"`data.split(..., {option}=)`"
    if option in SETTINGS:
        return f"`fk.train(..., {option}=)`" if option in arguments("train") else ANY_SETTING.format(option)
    return OPTION_IN_PYTHON.get(("*", option))


def on_command_line(function: str, argument: str) -> str | None:
    """What an argument is on the command line; None if nobody has said it."""
    command = next((key for key, value in SAME.items() if value == function), function)
    if argument in {"algorithm": 1, "model": 1} or argument in SETTINGS:
        return f"`--{argument.replace('_', '-')}`"
    written = {option: text for name, option, text in options() if name == command}
    return f"`{written[argument]}`" if argument in written else ONLY_PYTHON.get(argument)


def page() -> str:
    lines = [
        "# The command line and Python",
        "",
        "Every option of the command line and what it is in Python, and the reverse.",
        "`make options` writes this page. A test",
        "compares it with the commands and the signatures. `fk` is `import fedkeel as fk`.",
        "",
    ]
    rows: dict[str, list[tuple[str, str]]] = {}
    for command, option, written in options():
        rows.setdefault(command, []).append((written, in_python(command, option) or "?"))
    shown: set[tuple[str, str]] = set()
    for command, pairs in rows.items():
        new = [pair for pair in pairs if pair not in shown or (command in FUNCTIONS and "fk." + command in pair[1])]
        shown |= set(pairs)
        lines += [f"## fedkeel {command}".rstrip(), ""]
        lines += ["| option | Python |", "|---|---|", *(f"| `{a}` | {b} |" for a, b in new), ""] if new else []
        if len(new) < len(pairs):
            lines += ["The other options are those of the commands above.", ""]
    for function in FUNCTIONS:
        lines += [f"## fk.{function}", "", "| argument | command line |", "|---|---|"]
        lines += [f"| `{name}` | {on_command_line(function, name) or '?'} |" for name in arguments(function)]
        lines += [""]
    lines += ["## Other public names", "", "| name | what it is |", "|---|---|"]
    lines += [f"| `fk.{name}` | {_first_sentence(getattr(fk, name))} |" for name in fk.__all__ if name not in FUNCTIONS]
    return "\n".join(lines) + "\n"


def _first_sentence(value: Any) -> str:
    text = " ".join((inspect.getdoc(value) or type(value).__name__).split("\n\n")[0].split())
    return re.split(r"(?<=[.:;])\s", text)[0].rstrip(":;").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
