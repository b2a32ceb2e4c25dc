"""Options that compare, sweep and reproduce have in common, each with its help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what the directory holds. [dim]E.g. --fresh[/dim]")]
StudyFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="STUDY.toml",
        help="A study in a file: the options below with underscores, e.g. batch_size = 20, and more (docs/study.md). "
        "Options override it. The study.toml that a study writes is such a file.",
        show_default=False,
    ),
]
OVER_HELP = (
    "An axis: a setting or hyper-parameter with its values, or a range FROM:TO:POINTS-PER-DECADE; can be given again, then "
    "all combinations are run. [dim]E.g. --over lr=1e-4:1:3 --over concentration=0.1,1[/dim]"
)


def _option(kind: Any, default: Any, flag: str, metavar: str, help: str) -> tuple[Any, Any]:
    made = typer.Option(flag, metavar=metavar, help=help, show_default=False)
    return Annotated[kind, made], default


# name -> (type with help, default)
SHARED: dict[str, tuple[Any, Any]] = {
    "algorithms": _option(str, "", "--algorithms", "NAMES", "Methods. [dim]E.g. --algorithms fedavg,scaffold,fedlada[/dim]"),
    "seeds": _option(
        int | None,
        None,
        "--seeds",
        "NUMBER",
        "Runs of every method, with the seeds SEED, SEED + 1, ... All of them have the same split, that of --split-seed. "
        "Default 3. [dim]E.g. --seeds 5[/dim]",
    ),
    "target": _option(
        float | None,
        None,
        "--target",
        "NUMBER",
        "Accuracy for rounds and floats to target. [dim]E.g. --target 0.9[/dim]",
    ),
    "changes": _option(
        list[str] | None,
        None,
        "--set",
        "METHOD.NAME=VALUE",
        "A method's hyper-parameter, several values: a grid to be searched; can be given again. "
        "[dim]E.g. --set fedlada.lr=0.01 --set fedavg.lr=0.01,0.1[/dim]",
    ),
    "search": _option(
        list[str] | None,
        None,
        "--search",
        "KEY=VALUE",
        "How the grids of a study file are searched: seed, metric, rounds, every, way (grid or coordinate), case; can be "
        "given again. [dim]E.g. --search way=grid --search rounds=100[/dim]",
    ),
    "jobs": _option(
        int | None,
        None,
        "--jobs",
        "NUMBER",
        "Runs at a time, each in a process of one thread (default: one per core). With 1 a run may use all cores for its "
        "clients. [dim]E.g. --jobs 1[/dim]",
    ),
    "ray": _option(
        str | None,
        None,
        "--ray",
        "ADDRESS",
        "Runs on a Ray cluster instead: local, auto or host:port. [dim]E.g. --ray 10.0.0.1:6379[/dim]",
    ),
    "tensorboard": _option(
        str | None,
        None,
        "--tensorboard",
        "FOLDER",
        "Event files for TensorBoard, too. [dim]E.g. --tensorboard runs/tensorboard[/dim]",
    ),
    "mlflow": _option(
        str | None,
        None,
        "--mlflow",
        "URI",
        "Rows to MLflow, too; '' is its default place. [dim]E.g. --mlflow sqlite:///mlflow.db[/dim]",
    ),
    "wandb": _option(
        str | None, None, "--wandb", "PROJECT", "Rows to Weights & Biases, too. [dim]E.g. --wandb fedkeel[/dim]"
    ),
    "fresh": (Fresh, False),
}
TensorBoard, MLflow, Wandb = (SHARED[name][0] for name in ("tensorboard", "mlflow", "wandb"))


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options above; it gets them together as `shared`."""
    own = inspect.signature(command, eval_str=True)
    kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "shared"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in SHARED.items()
    ]

    @functools.wraps(command)
    def call(**given: Any) -> Any:
        return command(shared=SimpleNamespace(**{name: given.pop(name) for name in SHARED}), **given)

    call.__signature__ = own.replace(parameters=kept + more)  # type: ignore[attr-defined]
    return call
