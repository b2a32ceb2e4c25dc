"""The command `fedkeel`. It imports torch only when a command needs it, so that help appears at once."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedkeel
from fedkeel.cli import information, studies
from fedkeel.cli.choose import choose
from fedkeel.cli.deployment import deploy_app, verify
from fedkeel.cli.export import export
from fedkeel.cli.options import TaskCommand, merged, task_options
from fedkeel.cli.studies import TASK, Fresh, MLflow, TensorBoard, Wandb
from fedkeel.errors import RoundError
from fedkeel.wording import amount

if TYPE_CHECKING:
    from fedkeel.runs.config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated optimizers for clients that differ and come and go.",
    epilog="Begin with: [bold]fedkeel run --algorithm scaffold[/bold]",
)

Study = Annotated[
    Path | None,
    typer.Argument(
        metavar="STUDY.toml",
        help="Settings in a file: the options below with underscores, e.g. batch_size = 20. Options override it. "
        "The config.toml that a run writes is such a file.",
        show_default=False,
    ),
]
RESUMED = ("rounds", "evaluate_every", "engine", "workers", "timeout", "ray_address", "min_clients", "data_dir")
LONGEST_NAME = 200  # bytes of a directory's name: file systems allow 255
OTHER = "choose another --out, or --fresh to replace it"


def _print_version(given: bool) -> None:
    if given:
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
            help="Directory of the run; default runs/DATA-ALGORITHM-seedSEED. If that directory holds another run, the "
            "settings that differ are added to its name. [dim]E.g. --out runs/x[/dim]",
            show_default=False,
        ),
    ] = None,
    fresh: Fresh = False,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    wandb: Wandb = None,
) -> None:
    """Train one method and keep the run in a directory.

    Hyper-parameters are options, too: [bold]--algorithm fedlada --lr 0.001[/bold]; `fedkeel algorithms NAME` lists them.

    The same command again continues a run that was stopped, or shows one that is complete.
    """
    from fedkeel.runs.config import read_settings, resolve

    if study is not None and (method := _method_in_place_of_a_file(study)):
        if settings.get("algorithm", method) != method:
            raise ValueError(f"algorithm: it is {method} and {settings['algorithm']}; give one of them")
        study, settings = None, settings | {"algorithm": method}
    given = read_settings(study) if study else {}
    config = resolve(merged(given, settings, ctx.args))
    out = out or _free_directory(config, fresh)
    places = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
    trackers = {name: place for name, place in places.items() if place is not None}
    if not trackers:
        return _train(config, out, fresh)
    from fedkeel.runs.trackers import check

    check(trackers)
    # To go on, give the same command again: `resume` would not send rows to the trackers.
    _train(config, out, fresh, trackers, shlex.join(word for word in shlex.split(ctx.obj) if word != "--fresh"))


def _method_in_place_of_a_file(study: Path) -> str | None:
    """The method that `fedkeel run fedavg` means. None if the word is not a method."""
    if study.exists() or study.suffix == ".toml":
        return None
    from fedkeel.core.algorithm import algorithms, spelled
    from fedkeel.errors import nearest

    known = algorithms()  # imports the methods of other packages, too, whose spelling is then known
    name = spelled(str(study))
    if ":" in name or name in known:
        return name
    raise ValueError(f"study: {str(study)!r} is neither a file nor a method{nearest(name.lower(), known)}")


def _free_directory(config: RunConfig, fresh: bool) -> Path:
    """runs/DATA-ALGORITHM-seedSEED. If it holds another run, the settings that differ are added to the name."""
    from fedkeel.data.load import short_name
    from fedkeel.engine.state import directory
    from fedkeel.runs.saved_config import differences
    from fedkeel.wording import file_name, value_text

    usual = Path("runs") / file_name(f"{short_name(config.data)}-{config.method.name}-seed{config.seed}")
    if fresh or not directory.holds_run(usual):
        return usual
    other = differences(usual, config)
    if not other:
        return usual
    words = "-".join(f"{key}={value_text(now, key)}" for key, (_, now) in sorted(other.items()) if now is not None)
    out = usual.with_name(file_name(f"{usual.name}-{words}")[:LONGEST_NAME])
    if not out.exists():
        typer.echo(f"{usual} holds a run with other settings; this one goes to {out}")
    return out


@app.command()
@task_options(RESUMED)
def resume(
    settings: dict[str, Any],
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of a run. [dim]E.g. runs/x[/dim]")],
) -> None:
    """Go on with a run that was stopped, from its last checkpoint, or with a complete run for more rounds (--rounds)."""
    from fedkeel.engine.state.directory import next_round
    from fedkeel.runs.config import resolve
    from fedkeel.runs.saved_config import saved_config

    config = resolve(saved_config(directory).changed(**settings))
    done = next_round(directory)
    if done is not None and config.rounds < done:
        raise ValueError(f"rounds = {config.rounds} is not allowed; {directory} has {done} rounds already")
    _train(config, directory, fresh=False, changed=settings)


def _train(
    config: RunConfig,
    out: Path,
    fresh: bool,
    trackers: Mapping[str, str] | None = None,
    again: str | None = None,
    changed: Iterable[str] = (),
) -> None:
    """Starts the run in `out`, goes on with it, or shows it if it is complete.

    trackers: tracker -> its place; each gets every row.  again: the command that goes on, if it is not `resume`.
    changed: settings that may differ from those of the run in `out`.
    """
    from fedkeel.engine.progress import RoundBar
    from fedkeel.engine.state import directory
    from fedkeel.runs.from_config import task, train

    if directory.holds_run(out) and not fresh:
        from fedkeel.runs.saved_config import difference, differences

        different = difference(out, config)
        if different and not differences(out, config).keys() <= set(changed):
            task(config)  # if a setting is wrong by itself, its message helps more
            longer = f", or fedkeel resume {shlex.quote(str(out))} --rounds {config.rounds} for more rounds"
            only_rounds = set(differences(out, config)) == {"rounds"}
            raise ValueError(f"{different}; {OTHER}{longer * only_rounds}")
        found = directory.summary(out, config.rounds)
        wrong = found and directory.damage(out, found)
        if wrong:
            typer.echo(f"{wrong}; it is made again", err=True)
        elif found:
            typer.echo(f"{out} holds this run already, and it is complete (--fresh runs it again)")
            return _print_summary(found, out)
        typer.echo(f"continuing {out} at round {directory.next_round(out) or 0} of {config.rounds}")
    try:
        with contextlib.ExitStack() as stack:
            listeners: list[Callable[[dict[str, Any]], None]] = []
            if trackers:
                from fedkeel.runs.trackers import tracked

                listeners.append(stack.enter_context(tracked(trackers, out.name, config.as_dict())))
            listeners.insert(0, stack.enter_context(RoundBar(config.algorithm, config.rounds)))

            def report(row: dict[str, Any]) -> None:
                for listener in listeners:
                    listener(row)

            found = train(config, out, resume=True, progress=report, fresh=fresh).summary()
    except (KeyboardInterrupt, RoundError) as error:
        from fedkeel.cli.interrupt import stopped

        command = again or f"fedkeel resume {shlex.quote(str(out))}"
        raise stopped(error, command, directory.holds_run(out)) from error.__cause__
    _print_summary(found, out)


def _print_summary(found: dict[str, Any], out: Path) -> None:
    """The last lines of `fedkeel run`: the result, its cost, and where its files are. found: the summary of the run."""
    rounds = found["rounds"]
    if found["final_accuracy"] is None:
        lines = {"train loss": f"{found['final_train_loss']:.4g}"}
    else:
        lines = {"accuracy": f"{found['final_accuracy']:.4f} final, {found['best_accuracy']:.4f} best"}
    lines["floats"] = (
        f"{amount(found['up'])} up, {amount(found['down'])} down per participating client "
        f"({amount(found['up'] / rounds)} up, {amount(found['down'] / rounds)} down a round)"
    )
    lines["engine"] = found["engine"] + (f" ({found['engine_reason']})" if found["engine_reason"] else "")
    if found["dropped"]:
        lines["dropped"] = f"{found['dropped']} answers of clients; metrics.jsonl says whose and why"
    lines["files"] = str(out)
    print(f"{found['algorithm']}: {rounds} rounds in {found['seconds']:.1f} s")
    for name, line in lines.items():
        print(f"  {name:<10} {line}")


studies.add_commands(app)
app.command()(verify)
app.command(cls=TaskCommand)(task_options(TASK)(choose))
app.command()(export)
information.add_commands(app)
app.add_typer(deploy_app, name="deploy")


SIGTERM_EXIT = 128 + signal.SIGTERM  # the exit code of a command that SIGTERM ended


class EndOnSigterm:
    """From now on, SIGTERM ends the command as Ctrl-C does: it says how to go on, and temporary folders are removed."""

    def __init__(self) -> None:
        self.happened, self.before = False, signal.SIG_DFL
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, self._end)  # type: ignore[assignment]

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.happened = True
        raise KeyboardInterrupt

    def restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.before)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: every error is one line, with exit code 2 for bad input and 1 for a run that failed."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot print '±' gets '?', not an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    terminated = EndOnSigterm()
    try:
        given = [word for word in words if word != "--debug"]
        code = app(given, standalone_mode=False, prog_name="fedkeel", obj=shlex.join(["fedkeel", *words]))
    except KeyboardInterrupt:  # before a command had anything to go on with
        typer.echo("interrupted", err=True)
        code = 130
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        from fedkeel.cli.error_text import explained

        message, code = explained(error)
        if message:
            typer.echo(f"error: {message}", err=True)
        else:  # `fedkeel` alone: typer has printed the help
            code = 0
    finally:
        terminated.restore()
    sys.exit(SIGTERM_EXIT if terminated.happened else code if isinstance(code, int) else 0)
