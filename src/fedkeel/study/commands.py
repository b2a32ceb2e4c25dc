"""The commands that run many runs: compare, sweep and reproduce make a study each, and carry it out in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkeel.interrupt import stopped
from fedkeel.options import NAMES, TaskCommand, task_options, unknown

TASK = [name for name in NAMES if name != "algorithm"]
OWN = ("algorithms", "seeds", "target", "set", "out", "fresh", "jobs", "search", "tensorboard", "mlflow", "wandb")

StudyArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="STUDY.toml",
        help="A study in a file: the options below with underscores, e.g. batch_size = 20, and more (docs/study.md). "
        "Options override it. The study.toml that a study writes is such a file.",
        show_default=False,
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what the directory holds. [dim]E.g. --fresh[/dim]")]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="Runs of every method, with the seeds SEED, SEED + 1, ... All of them have the same split, that of "
        "--split-seed. Default 3. [dim]E.g. --seeds 5[/dim]",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="METHOD.NAME=VALUE",
        help="A method's hyper-parameter; can be given again. [dim]E.g. --set fedlada.lr=0.01[/dim]",
        show_default=False,
    ),
]
Algorithms = Annotated[
    str, typer.Option(help="Methods. [dim]E.g. --algorithms fedavg,scaffold,fedlada[/dim]", metavar="NAMES")
]
Target = Annotated[
    float | None,
    typer.Option(help="Accuracy for rounds and floats to target. [dim]E.g. --target 0.9[/dim]", show_default=False),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at a time, each in a process of one thread (default: one per core). With 1 a run may use all cores "
        "for its clients. [dim]E.g. --jobs 1[/dim]",
        show_default=False,
    ),
]
Searching = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="KEY=VALUE",
        help="How the grids of a study file are searched: seed, metric, rounds, every, way (grid or coordinate), case; can "
        "be given again. [dim]E.g. --search way=grid --search rounds=100[/dim]",
        show_default=False,
    ),
]
TensorBoard = Annotated[
    str | None,
    typer.Option(
        "--tensorboard",
        metavar="FOLDER",
        help="Event files for TensorBoard, too. [dim]E.g. --tensorboard runs/tensorboard[/dim]",
        show_default=False,
    ),
]
MLflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="URI",
        help="Rows to MLflow, too; '' is its default place. [dim]E.g. --mlflow file:runs/mlflow[/dim]",
        show_default=False,
    ),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        "--wandb",
        metavar="PROJECT",
        help="Rows to Weights & Biases, too. [dim]E.g. --wandb fedkeel[/dim]",
        show_default=False,
    ),
]
OVER_HELP = (
    "An axis: a setting or hyper-parameter with its values, or a range FROM:TO:POINTS-PER-DECADE; can be given again, then "
    "all combinations are run. [dim]E.g. --over lr=1e-4:1:3 --over concentration=0.1,1[/dim]"
)


def add_commands(app: typer.Typer) -> None:
    """Gives the app the commands of this file."""
    app.command(cls=TaskCommand)(task_options(TASK)(compare))
    app.command(cls=TaskCommand)(task_options(TASK)(sweep))
    app.command(cls=TaskCommand)(task_options(TASK)(reproduce))
    app.command()(report)


def compare(
    ctx: typer.Context,
    settings: dict[str, Any],
    study: StudyArgument = None,
    algorithms: Algorithms = "",
    seeds: Seeds = None,
    target: Target = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Directory of all runs. [dim]E.g. --out runs/mine[/dim]")] = Path("runs/compare"),
    fresh: Fresh = False,
    jobs: Jobs = None,
    search: Searching = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    wandb: Wandb = None,
) -> None:
    """Run several methods on the same task with several seeds, and put them into one table and one page.

    A study file may also have seeds, target, and hyper-parameters by method in tables: [bold]\\[methods.fedlada][/bold].

    The same command again continues where it was stopped.
    """
    _nothing_else(ctx, OWN)
    file = _assembled(_read(study), settings, algorithms, seeds, target, set_, search)
    _carry_out(ctx, file, out, fresh, jobs, _trackers(tensorboard, mlflow, wandb))


def sweep(
    ctx: typer.Context,
    settings: dict[str, Any],
    over: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUES", help=OVER_HELP, show_default=False)] = None,
    study: StudyArgument = None,
    algorithms: Algorithms = "",
    seeds: Seeds = None,
    target: Target = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Directory of all runs. [dim]E.g. --out runs/mine[/dim]")] = Path("runs/sweep"),
    fresh: Fresh = False,
    jobs: Jobs = None,
    search: Searching = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    wandb: Wandb = None,
) -> None:
    """Run methods over a range of a setting or hyper-parameter, or over two of them, for curves and heat maps.

    A method that does not have the hyper-parameter is run once, for comparison.

    The same command again continues where it was stopped; with more values, only those are run.
    """
    from fedkeel.study.edit import add_axes

    _nothing_else(ctx, (*OWN, "over"))
    file = add_axes(_read(study), over or [])
    if not file["sweep"]:
        raise ValueError("over: there is no axis; for example --over lr=1e-4:1:3, or a table [sweep] in the study file")
    _carry_out(
        ctx,
        _assembled(file, settings, algorithms, seeds, target, set_, search),
        out,
        fresh,
        jobs,
        _trackers(tensorboard, mlflow, wandb),
    )


def reproduce(
    ctx: typer.Context,
    settings: dict[str, Any],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A recipe. [dim]E.g. gradma/tab1[/dim]", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all recipes and stop. [dim]E.g. --list[/dim]")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the recipe as a study file and stop. [dim]E.g. --show > mine.toml[/dim]")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="paper: as in the paper; small: for a laptop. [dim]E.g. --scale small[/dim]", metavar="NAME")
    ] = "paper",
    cases: Annotated[
        str,
        typer.Option(
            help="Only the columns whose names contain one of these. [dim]E.g. --cases 'mnist,cifar10'[/dim]",
            metavar="NAMES",
        ),
    ] = "",
    algorithms: Algorithms = "",
    seeds: Seeds = None,
    target: Target = None,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of all runs; default runs/NAME. [dim]E.g. --out runs/x[/dim]", show_default=False),
    ] = None,
    fresh: Fresh = False,
    jobs: Jobs = None,
    search: Searching = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    wandb: Wandb = None,
) -> None:
    """Run a table or figure of one of the five papers, and print the paper's numbers beside ours.

    Every setting can be changed by its option: [bold]fedkeel reproduce gradma/tab1 --cases mnist --rounds 100[/bold].
    """
    from fedkeel.study import recipe as recipes
    from fedkeel.study import screen
    from fedkeel.study.edit import choose_cases

    _nothing_else(ctx, (*OWN, "list", "show", "scale", "cases"))
    if list_ or name is None:
        return screen.recipe_table(recipes.listed())
    recipe = recipes.read(name, scale)
    file = _assembled(choose_cases(recipe.file, cases), settings, algorithms, seeds, target, set_, search)
    if show:
        import tomli_w

        from fedkeel.study.results import without_none

        return typer.echo(tomli_w.dumps(without_none(file)))
    suffix = "" if scale == "paper" else f"-{scale}"
    store = out or Path("runs") / (recipe.runs + suffix)
    trackers = _trackers(tensorboard, mlflow, wandb)
    _carry_out(ctx, file, out or Path("runs") / (name + suffix), fresh, jobs, trackers, store)


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Of a study or of one run. [dim]E.g. runs/compare[/dim]")
    ],
    png: Annotated[
        bool,
        typer.Option("--png", help="Figures also as PNG, drawn by a Chromium that is installed. [dim]E.g. --png[/dim]"),
    ] = False,
) -> None:
    """Write the page of a study or run, its figures as SVG and its table as CSV and LaTeX.

    A study may still be under way: what is complete is shown.
    """
    from fedkeel.study.report import report as make

    page = make(directory, png)
    typer.echo(f"files: {page}, and figures and tables in {page.parent / 'report'}")


def _read(study: Path | None) -> dict[str, Any]:
    from fedkeel import config as runs

    return runs.read_study(study) if study else {}


def _nothing_else(ctx: typer.Context, own: tuple[str, ...]) -> None:
    """Options that nobody knows are not hyper-parameters here, since there are several methods."""
    if ctx.args:
        hint = "hyper-parameters are set by method here: --set fedavg.lr=0.1"
        raise unknown(ctx.args[0].partition("=")[0], (*TASK, *own), hint)


def _assembled(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    algorithms: str,
    seeds: int | None,
    target: float | None,
    changes: list[str] | None,
    search: list[str] | None,
) -> dict[str, Any]:
    """The content of a study file, changed by the options of the command line."""
    from fedkeel.study.edit import change_search, choose_methods, override, set_values

    changed = set_values(choose_methods(override(file, settings), algorithms), changes or [])
    changed = change_search(changed, search or [])
    if seeds is not None:
        changed["seeds"] = seeds
    if target is not None:
        changed["target"] = target
        for case in changed["cases"]:
            case.pop("target", None)
    return changed


def _trackers(tensorboard: str | None, mlflow: str | None, wandb: str | None) -> dict[str, str]:
    """The trackers that are asked for, and their places; an error if one is not installed."""
    from fedkeel.study.trackers import check

    given = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    names = {name: place for name, place in given.items() if place is not None}
    check(names)
    return names


def _carry_out(
    ctx: typer.Context,
    file: dict[str, Any],
    out: Path,
    fresh: bool,
    jobs: int | None,
    trackers: dict[str, str],
    store: Path | None = None,
) -> None:
    from fedkeel.study import screen
    from fedkeel.study.compare import carry_out
    from fedkeel.study.study import Study

    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs = {jobs} is not allowed; it must be a whole number >= 1")
    study = Study.read(file)
    with stopped(ctx.obj, lambda: True):
        results = carry_out(study, out, store=store, fresh=fresh, jobs=jobs, command=ctx.obj, trackers=trackers)
    screen.comparison(results, out)
    if any(row["errors"] for row in results["rows"]):
        raise typer.Exit(1)
