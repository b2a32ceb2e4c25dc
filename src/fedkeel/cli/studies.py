"""The commands of studies: compare, sweep and reproduce each make a study and run it in the same way; report shows one."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from fedkeel.cli.options import NAMES, TaskCommand, task_options, unknown
from fedkeel.errors import RoundError

TASK = [name for name in NAMES if name != "algorithm"]


Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what the directory holds. [dim]E.g. --fresh[/dim]")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON, for programs. [dim]E.g. --json[/dim]")]
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
    "An axis: a setting or hyper-parameter and its values, or a range FROM:TO:POINTS-PER-DECADE. If you repeat it, "
    "all combinations are run. [dim]E.g. --over lr=1e-4:1:3 --over concentration=0.1,1[/dim]"
)


def _option(flag: str, metavar: str, kind: Any, help: str, default: Any = None) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(flag, metavar=metavar, help=help, show_default=False)], default


TEXT, WHOLE, TEXTS = str | None, int | None, list[str] | None
# name -> (type with help, default)
SHARED: dict[str, tuple[Any, Any]] = {
    "algorithms": _option(
        "--algorithms", "NAMES", str, "Methods. [dim]E.g. --algorithms fedavg,scaffold,fedlada[/dim]", default=""
    ),
    "seeds": _option(
        "--seeds",
        "NUMBER",
        WHOLE,
        "Runs of every method, with the seeds SEED, SEED + 1, ... All of them have the same split, "
        "that of --split-seed. Default 3. [dim]E.g. --seeds 5[/dim]",
    ),
    "target": _option(
        "--target", "NUMBER", float | None, "Show the rounds and floats until this accuracy. [dim]E.g. --target 0.9[/dim]"
    ),
    "changes": _option(
        "--set",
        "METHOD.NAME=VALUE",
        TEXTS,
        "A hyper-parameter of one method. Several values are a grid to search. You can "
        "repeat the option. [dim]E.g. --set fedlada.lr=0.01 --set fedavg.lr=0.01,0.1[/dim]",
    ),
    "search": _option(
        "--search",
        "KEY=VALUE",
        TEXTS,
        "How grids are searched: seed, metric, rounds, every, way (grid, coordinate or fair), trials, validation, case. "
        "You can repeat the option. [dim]E.g. --search way=grid --search rounds=100[/dim]",
    ),
    "tune": (
        Annotated[
            bool,
            typer.Option(
                "--tune",
                help="First search the hyper-parameters of every method that you have not set, with the same number of "
                "rounds for each and on validation data. --search trials=16 --search rounds=50 changes how many. "
                "[dim]E.g. --tune[/dim]",
            ),
        ],
        False,
    ),
    "jobs": _option(
        "--jobs",
        "NUMBER",
        WHOLE,
        "Runs at a time, each in a process of one thread (default: one per core). With 1, a run may "
        "use all cores for its clients. [dim]E.g. --jobs 1[/dim]",
    ),
    "ray": _option(
        "--ray", "ADDRESS", TEXT, "Run on a Ray cluster: local, auto or host:port. [dim]E.g. --ray 10.0.0.1:6379[/dim]"
    ),
    "slurm": _option(
        "--slurm",
        "KEY=VALUE,...",
        TEXT,
        "Run as jobs of a Slurm cluster whose nodes see the directory: partition, hours (limit of a job; it goes on in the "
        "next one), at-most (jobs at a time). [dim]E.g. --slurm partition=short,hours=4,at-most=20[/dim]",
    ),
    "tensorboard": _option(
        "--tensorboard", "FOLDER", TEXT, "Also write event files for TensorBoard. [dim]E.g. --tensorboard runs/tb[/dim]"
    ),
    "mlflow": _option(
        "--mlflow",
        "URI",
        TEXT,
        "Also send rows to MLflow; '' is its default place. [dim]E.g. --mlflow sqlite:///mlflow.db[/dim]",
    ),
    "wandb": _option("--wandb", "PROJECT", TEXT, "Also send rows to Weights & Biases. [dim]E.g. --wandb fedkeel[/dim]"),
    "fresh": (Fresh, False),
}
TensorBoard, MLflow, Wandb = (SHARED[name][0] for name in ("tensorboard", "mlflow", "wandb"))


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options above to a command. The command gets all of them as one argument, `shared`."""
    signature = inspect.signature(command, eval_str=True)
    kept = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values() if p.name != "shared"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in SHARED.items()
    ]

    @functools.wraps(command)
    def call(**given: Any) -> Any:
        return command(shared=SimpleNamespace(**{name: given.pop(name) for name in SHARED}), **given)

    call.__signature__ = signature.replace(parameters=kept + more)  # type: ignore[attr-defined]
    return call


# Commands ---


def add_commands(app: typer.Typer) -> None:
    """Gives the app the commands of this file."""
    for command in (compare, sweep, reproduce):
        app.command(cls=TaskCommand)(task_options(TASK)(shared_options(command)))
    app.command()(report)


def compare(
    ctx: typer.Context,
    settings: dict[str, Any],
    shared: SimpleNamespace,
    study: StudyFile = None,
    out: Annotated[Path, typer.Option(help="Directory of all runs. [dim]E.g. --out runs/mine[/dim]")] = Path("runs/compare"),
) -> None:
    """Run several methods on the same task with several seeds, and put them into one table and one page.

    A study file may also have seeds, target, and hyper-parameters by method in tables: [bold]\\[methods.fedlada][/bold].

    The same command again continues where it was stopped.
    """
    _refuse_unknown(ctx)
    _run(ctx, _with_options(_read(study), settings, shared), shared, out)


def sweep(
    ctx: typer.Context,
    settings: dict[str, Any],
    shared: SimpleNamespace,
    over: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUES", help=OVER_HELP, show_default=False)] = None,
    study: StudyFile = None,
    out: Annotated[Path, typer.Option(help="Directory of all runs. [dim]E.g. --out runs/mine[/dim]")] = Path("runs/sweep"),
) -> None:
    """Run methods over a range of a setting or hyper-parameter, or over two of them, for curves and heat maps.

    A method that does not have the hyper-parameter is run once, for comparison.

    The same command again continues where it was stopped; with more values, only those are run.
    """
    from fedkeel.study.changes import add_axes

    _refuse_unknown(ctx, "over")
    file = add_axes(_read(study), over or [])
    if not file.get("sweep"):
        raise ValueError("over: there is no axis; for example --over lr=1e-4:1:3, or a table [sweep] in the study file")
    _run(ctx, _with_options(file, settings, shared), shared, out)


def reproduce(
    ctx: typer.Context,
    settings: dict[str, Any],
    shared: SimpleNamespace,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A recipe. [dim]E.g. gradma/tab1[/dim]", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all recipes and stop. [dim]E.g. --list[/dim]")] = False,
    json: Json = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the recipe as a study file and stop. [dim]E.g. --show > mine.toml[/dim]")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="paper: as in the paper; small: for a laptop. [dim]E.g. --scale small[/dim]", metavar="NAME")
    ] = "paper",
    cases: Annotated[
        str,
        typer.Option(
            help="Only the columns whose names contain one of these words. [dim]E.g. --cases mnist,cifar-10[/dim]",
            metavar="NAMES",
        ),
    ] = "",
    over: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUES", help=OVER_HELP, show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of all runs; default runs/NAME. [dim]E.g. --out runs/x[/dim]", show_default=False),
    ] = None,
) -> None:
    """Run a table or figure of one of the five papers, and print the paper's numbers beside ours.

    Every setting can be changed by its option: [bold]fedkeel reproduce gradma/tab1 --cases mnist --rounds 100[/bold].
    """
    import fedkeel.cli.tables as screen
    from fedkeel.study.changes import add_axes, choose_cases, tell_changes
    from fedkeel.study.recipes import read as recipes

    _refuse_unknown(ctx, "list", "json", "show", "scale", "cases", "over")
    if json and (list_ or name is None):
        from fedkeel.cli.listings import print_json

        columns = ("name", "title", "runs", "trials")
        return print_json([dict(zip(columns, row, strict=True)) for row in recipes.listed()])
    if json:
        raise ValueError("option --json belongs to --list; a study writes results.json to its directory")
    if list_ or name is None:
        return screen.recipe_table(recipes.listed())
    recipe = recipes.read(name, scale)
    file = _with_options(add_axes(choose_cases(recipe.file, cases), over or []), settings, shared)
    searched = [*(shared.search or []), *(["way=fair"] if shared.tune else [])]
    others = [*(shared.changes or []), *(over or []), *(f"search {one}" for one in searched)]
    file = tell_changes(file, settings | {"seeds": shared.seeds, "target": shared.target}, others)
    if show:
        import tomli_w

        from fedkeel.files import as_toml
        from fedkeel.study.study import Study

        Study.read(file)  # raises if it cannot be run
        return typer.echo(tomli_w.dumps(as_toml(file)))
    suffix = "" if scale == "paper" else f"-{scale}"
    store = out or Path("runs") / (recipe.runs + suffix)
    _run(ctx, file, shared, out or Path("runs") / (name + suffix), store)


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="Of a study or of one run. [dim]E.g. runs/compare[/dim]")
    ],
    formats: Annotated[
        str,
        typer.Option(
            help="Draw the figures for papers, too: pdf, pgf, svg, png. [dim]E.g. --formats pdf,png[/dim]", metavar="NAMES"
        ),
    ] = "",
    png: Annotated[bool, typer.Option("--png", help="Short for --formats png. [dim]E.g. --png[/dim]")] = False,
) -> None:
    """Write the page of a study or run, its figures as SVG and its table as CSV and LaTeX.

    If the study is not complete, the page shows what there is.
    """
    from fedkeel.study.report.write import report as make

    names = [name.strip() for name in formats.split(",") if name.strip()]
    page = make(directory, [*dict.fromkeys([*names, *(["png"] if png else [])])])
    typer.echo(f"files: {page}, and figures and tables in {page.parent / 'report'}")


def _read(study: Path | None) -> dict[str, Any]:
    from fedkeel.runs.config import read_settings
    from fedkeel.study.file import read_parts

    values = read_settings(study) if study else {}
    read_parts(values)  # Options change parts of the file, so every part must be valid before that.
    return values


def _refuse_unknown(ctx: typer.Context, *others: str) -> None:
    """Refuses unknown options. They cannot be hyper-parameters here, because there are several methods."""
    if ctx.args:
        hint = "hyper-parameters are set by method here: --set fedavg.lr=0.1"
        option = ctx.args[0].partition("=")[0]
        if option == "over":
            raise ValueError("unknown option --over; `fedkeel sweep` has it")
        shared = ["set" if name == "changes" else name for name in SHARED]
        raise unknown(option, (*TASK, *shared, "out", *others), hint)


def _with_options(file: Mapping[str, Any], settings: Mapping[str, Any], shared: SimpleNamespace) -> dict[str, Any]:
    """The content of a study file, changed by the options of the command line."""
    from fedkeel.study.compare import with_options

    options = {name: getattr(shared, name) for name in ("algorithms", "seeds", "target", "tune")}
    return with_options(file, settings, **options, changes=shared.changes or [], search=shared.search or [])


def _run(ctx: typer.Context, file: dict[str, Any], shared: SimpleNamespace, out: Path, store: Path | None = None) -> None:
    import fedkeel.cli.tables as screen
    from fedkeel.study.compare import check_jobs, run_study
    from fedkeel.study.study import Study

    check_jobs(shared.jobs)
    places = {"tensorboard": shared.tensorboard, "mlflow": shared.mlflow, "wandb": shared.wandb}
    chosen = {name: place for name, place in places.items() if place is not None}
    where = next((name for name in ("ray", "slurm") if getattr(shared, name) is not None), None)
    if where and (chosen or shared.jobs is not None or None not in (shared.ray, shared.slurm)):
        name = next(iter(chosen), "jobs" if shared.jobs is not None else "slurm")
        raise ValueError(
            f"{name} is not allowed with {where}: runs go to the nodes of the cluster, and send no rows until they end"
        )
    if chosen:
        from fedkeel.runs.trackers import check

        check(chosen)
    study = Study.read(file)
    options: dict[str, Any] = {
        "fresh": shared.fresh,
        "jobs": shared.jobs,
        "ray": shared.ray,
        "slurm": shared.slurm,
        "trackers": chosen,
    }
    # With --fresh, going on would lose the runs that are complete.
    again = shlex.join(word for word in shlex.split(ctx.obj) if word != "--fresh")
    try:
        results = run_study(study, out, store=store, command=ctx.obj, **options)
    except (KeyboardInterrupt, RoundError) as error:
        from fedkeel.cli.interrupt import stopped

        raise stopped(error, again, kept=True) from error.__cause__
    screen.comparison(results, out)
    if any(row["errors"] for row in results["rows"]):
        raise typer.Exit(1)
