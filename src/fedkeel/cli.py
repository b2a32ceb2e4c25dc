"""The command `fedkeel`. Nothing here imports torch before a command needs it, so that help comes at once."""

from __future__ import annotations

import contextlib
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedkeel
from fedkeel.options import NAMES, TaskCommand, hyperparameters, merged, task_options, unknown

if TYPE_CHECKING:
    from fedkeel.config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated optimizers for clients that differ and come and go.",
    epilog="Begin with: [bold]fedkeel run --algorithm scaffold[/bold]",
)
datasets_app = typer.Typer(invoke_without_command=True, help="List the data sets, or show how a split differs by client.")
app.add_typer(datasets_app, name="datasets")
deploy_app = typer.Typer(no_args_is_help=True, help="Run a chosen method on a real network, by Flower (docs/deploy.md).")
app.add_typer(deploy_app, name="deploy")

Study = Annotated[
    Path | None,
    typer.Argument(
        metavar="STUDY.toml",
        help="Settings in a file: the options below with underscores, e.g. batch_size = 20. Options override it. "
        "The config.toml that a run writes is such a file.",
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
OTHER = "choose another --out, or --fresh to replace it"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedkeel {fedkeel.__version__}")
        raise typer.Exit()


@app.callback()
def _all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; works in any place.")] = False,
) -> None:
    pass


@app.command(cls=TaskCommand)
@task_options()
def run(
    ctx: typer.Context,
    settings: dict[str, Any],
    study: Study = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the run; default runs/DATA-ALGORITHM-seedSEED. [dim]E.g. --out runs/x[/dim]",
            show_default=False,
        ),
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Train one method and keep the run in a directory.

    Hyper-parameters are options, too: [bold]--algorithm fedlada --lr 0.001[/bold]; `fedkeel algorithms NAME` lists them.

    The same command again continues a run that was stopped, or shows one that is complete.
    """
    from fedkeel import config as runs

    given = runs.read_study(study) if study else {}
    config = runs.resolve(merged(given, settings, ctx.args))
    out = out or Path("runs") / f"{config.data}-{config.algorithm}-seed{config.seed}"
    _train(config, out, fresh)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run. [dim]E.g. runs/x[/dim]")],
) -> None:
    """Go on with a run that was stopped, from its last checkpoint."""
    from fedkeel import config as runs

    _train(runs.resolve(runs.stored(directory)), directory, fresh=False)


def _train(config: RunConfig, out: Path, fresh: bool) -> None:
    """Runs, continues or shows the run in `out`, whichever it needs."""
    from fedkeel import config as runs
    from fedkeel import directory, show

    if directory.holds_run(out) and not fresh:
        if different := directory.difference(out, config):
            runs.task(config)  # a setting that is wrong by itself is the better message
            raise ValueError(f"{different}; {OTHER}")
        if found := directory.summary(out, config.rounds):
            typer.echo(f"{out} holds this run already, and it is complete (--fresh runs it again)")
            return show.run_summary(found, out)
        typer.echo(f"continuing {out} at round {directory.next_round(out) or 0} of {config.rounds}")
    with _stopped(f"fedkeel resume {shlex.quote(str(out))}", lambda: directory.holds_run(out)):
        found = runs.run(config, out, resume=True, fresh=fresh).summary()
    show.run_summary(found, out)


@contextlib.contextmanager
def _stopped(command: str, kept: Callable[[], bool]) -> Iterator[None]:
    """Says how to go on after Ctrl-C or a failed round, if something was kept."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; go on with: {command}" if kept() else "interrupted before the first round", err=True)
        raise typer.Exit(130) from None
    except fedkeel.RoundError as error:
        if kept():
            error.add_note(f"go on with: {command}")
        raise


@app.command(cls=TaskCommand)
@task_options(name for name in NAMES if name != "algorithm")
def compare(
    ctx: typer.Context,
    settings: dict[str, Any],
    study: Study = None,
    algorithms: Annotated[
        str, typer.Option(help="Methods. [dim]E.g. --algorithms fedavg,scaffold,fedlada[/dim]", metavar="NAMES")
    ] = "",
    seeds: Seeds = None,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy for rounds and floats to target. [dim]E.g. --target 0.9[/dim]", show_default=False),
    ] = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Directory of all runs. [dim]E.g. --out runs/mine[/dim]")] = Path("runs/compare"),
    fresh: Fresh = False,
) -> None:
    """Run several methods on the same task with several seeds, and put them into one table and one page.

    A study file may also have seeds, target, and hyper-parameters by method in tables: [bold]\\[methods.fedlada][/bold].

    The same command again continues where it was stopped.
    """
    if ctx.args:
        known = (*NAMES, "algorithms", "seeds", "target", "set", "out", "fresh")
        hint = "hyper-parameters are set by method here: --set fedavg.lr=0.1"
        raise unknown(ctx.args[0].partition("=")[0], known, hint)
    from fedkeel import config as runs
    from fedkeel import show
    from fedkeel.study.compare import compare as compare_methods

    given = runs.read_study(study) if study else {}
    methods = _methods(given.pop("methods", {}), algorithms, set_ or [])
    filed = {"seeds": given.pop("seeds", 3), "target": given.pop("target", None)}
    seeds = filed["seeds"] if seeds is None else seeds
    target = filed["target"] if target is None else target
    with _stopped(ctx.obj, lambda: True):
        rows = compare_methods(merged(given, settings), methods, seeds, target, out, fresh=fresh, command=ctx.obj)
    show.comparison(rows, target, out)
    if any(row["errors"] for row in rows):
        raise typer.Exit(1)


def _methods(tables: Any, names: str, changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Methods and their hyper-parameters: the file's tables, narrowed by --algorithms, changed by --set."""
    if not isinstance(tables, dict) or not all(isinstance(z, dict) for z in tables.values()):
        raise ValueError("methods: in a study file it must be tables, for example [methods.fedlada] with lr = 0.01")
    listed = [name.strip() for name in names.split(",") if name.strip()] or list(tables)
    if len(set(listed)) < len(listed):
        raise ValueError(f"algorithms = {names!r} is not allowed; it must be different names")
    methods = {name: dict(tables.get(name, {})) for name in listed}
    for change in changes:
        name, dot, pair = change.partition(".")
        if not dot or "=" not in pair:
            raise ValueError(f"set = {change!r} is not allowed; it must be METHOD.NAME=VALUE, for example fedlada.lr=0.01")
        if name not in methods:
            raise ValueError(f"set = {change!r} is not allowed; {name} is not among the compared: {', '.join(methods)}")
        methods[name] |= hyperparameters(name, [pair])
    return methods


@app.command()
def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="A method, for its page. [dim]E.g. fedlada[/dim]", show_default=False)
    ] = None,
) -> None:
    """List all methods with their costs, or show the page of one."""
    from fedkeel import show

    if name is None:
        show.algorithm_table()
    else:
        show.algorithm_page(name)


@datasets_app.callback()
def _datasets(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        from fedkeel import show

        show.dataset_table()


@datasets_app.command("show")
@task_options(("split", "clients", "concentration", "per_client", "split_seed"))
def show_dataset(
    settings: dict[str, Any],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set. [dim]E.g. digits[/dim]")],
) -> None:
    """Split a data set among clients and show how unlike they are: sizes, label entropy, distance from the whole."""
    from fedkeel import config as runs
    from fedkeel import show

    show.split_table(runs.federation(runs.with_split_defaults(merged({"data": name}, settings))))


@deploy_app.command("init")
def deploy_init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to put the app. [dim]E.g. app[/dim]")],
    source: Annotated[
        Path,
        typer.Option("--from", metavar="RUN", help="Directory of a run, or a study file. [dim]E.g. --from runs/x[/dim]"),
    ],
) -> None:
    """Write a Flower app that runs the method, model and data of a run on SuperNodes, or in Flower's simulation."""
    from fedkeel.deploy.project import init

    for path in init(directory, source):
        typer.echo(f"wrote {path}")
    typer.echo(f"run it with: flwr run {shlex.quote(str(directory))}")


@deploy_app.command("picture")
def deploy_picture(
    name: Annotated[str, typer.Argument(metavar="METHOD", help="A method. [dim]E.g. scaffold[/dim]")],
) -> None:
    """Print a drawing (SVG) of who keeps what and what travels when a method is deployed."""
    from fedkeel.core.algorithm import make
    from fedkeel.deploy.picture import drawing

    typer.echo(drawing(make(name)), nl=False)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: every error is one line, with exit code 2 for bad input and 1 for a run that failed."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot print '±' gets '?', not an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        given = [word for word in words if word != "--debug"]
        code = app(given, standalone_mode=False, prog_name="fedkeel", obj=shlex.join(["fedkeel", *words]))
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        message, code = _explained(error)
        if message:
            typer.echo(f"error: {' '.join(message.split())}", err=True)
        else:  # `fedkeel` alone: typer has printed the help
            code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> tuple[str, int]:
    """An error in words, and the exit code that it deserves."""
    if isinstance(error, typer.Abort):
        return "interrupted", 130
    if hasattr(error, "format_message"):  # typer's own: a missing argument, an unknown command
        return error.format_message(), 2
    message = "; ".join([str(error), *getattr(error, "__notes__", ())])
    if isinstance(error, ValueError):
        return message, 2
    from fedkeel.engine.checkpoint import StorageError

    if isinstance(error, StorageError | fedkeel.RoundError):
        return message, 2 if isinstance(error, StorageError) else 1
    return f"unexpected {type(error).__name__}: {message} (--debug shows the traceback)", 1
