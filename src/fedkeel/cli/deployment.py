"""The commands of `fedkeel deploy`, and `fedkeel verify`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedkeel.runs.config import RunConfig

deploy_app = typer.Typer(no_args_is_help=True, help="Run a chosen method on a real network, by Flower (docs/deploy.md).")


@deploy_app.command("init")
def deploy_init(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to put the app. [dim]E.g. app[/dim]")],
    source: Annotated[
        Path,
        typer.Option(
            "--from", metavar="RUN", help="Directory of a run or study, or a study file. [dim]E.g. --from runs/x[/dim]"
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which method of a study. [dim]E.g. --method scaffold[/dim]", show_default=False),
    ] = None,
) -> None:
    """Write a Flower app that runs the method, model and data of a run on SuperNodes, or in Flower's simulation."""
    from fedkeel.deploy.project import init

    chosen: Path | RunConfig = source
    if (source / "study.toml").exists():
        from fedkeel.study.study_result import StudyResult

        chosen = StudyResult.read(source).config_of(method)
    elif method is not None:
        raise ValueError(f"method = {method!r} is not allowed: {source} holds one run, not a study")
    for path in init(directory, chosen):
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


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A deployed run. [dim]E.g. app/run[/dim]")],
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The server's public key or certificate. [dim]E.g. --key server.crt[/dim]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check the signature of a deployed run: model, history, summary, config and audit log. Exit code 1: it is wrong."""
    from fedkeel.deploy import signature
    from fedkeel.errors import Damaged

    try:
        lines = signature.verify(directory, key)
    except Damaged as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    for line in lines:
        typer.echo(line)
