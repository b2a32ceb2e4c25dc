"""The commands that show what there is (`algorithms`, `datasets`), check a method (`check`) and measure speed (`bench`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkeel.cli.options import TaskCommand, merged, task_options
from fedkeel.cli.studies import Json
from fedkeel.runs.config import OWN_DATA

datasets_app = typer.Typer(invoke_without_command=True, help="List the data sets, or show how a split differs by client.")


def add_commands(app: typer.Typer) -> None:
    app.command()(algorithms)
    app.command(cls=TaskCommand)(check)
    app.command()(bench)
    app.add_typer(datasets_app, name="datasets")


def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="A method, for its page. [dim]E.g. fedlada[/dim]", show_default=False)
    ] = None,
    conditions: Annotated[
        bool,
        typer.Option(
            "--conditions",
            help="Which conditions (privacy, robust means, compression, attacks, absence, buffers) are valid. "
            "[dim]E.g. --conditions[/dim]",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List all methods with their costs, or show the page of one."""
    from fedkeel.cli.tables import algorithm_page, algorithm_table

    if conditions:
        from fedkeel.cli.conditions import condition_table

        condition_table(name, json)
    elif json:
        from fedkeel.cli.listings import method_facts, print_json
        from fedkeel.core.algorithm import algorithms as names

        print_json([method_facts(one) for one in names()] if name is None else method_facts(name))
    elif name is None:
        algorithm_table()
    else:
        algorithm_page(name)


def check(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="METHOD", help="A name, or package.module:Class. [dim]E.g. mine.methods:FedMine[/dim]")
    ],
) -> None:
    """Apply the laws that every method here obeys to a method, also of another package. It takes some seconds.

    Hyper-parameters are options: values with which 100 rounds reach a fixed point, for the law about the minimiser.
    """
    from fedkeel.cli.check import check_method
    from fedkeel.runs.config import hyperparameters_from

    if not check_method(name, hyperparameters_from(name, ctx.args)):
        raise typer.Exit(1)


def bench(
    only: Annotated[
        str,
        typer.Option(help="Sections by letter, all by default: a to j, s. [dim]E.g. --only a,b[/dim]", metavar="LETTERS"),
    ] = "",
    passes: Annotated[
        int | None,
        typer.Option(help="Turns of everybody; default 3 to 7. [dim]E.g. --passes 3[/dim]", min=1, show_default=False),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Install and run other simulators. [dim]E.g. --no-peers[/dim]")
    ] = True,
) -> None:
    """Measure speed and scale beside other simulators, in turns, and write results/bench.md.

    (a)-(f) models from a small network to a ResNet and an LSTM, (g) every method, (h) growth, (s) waiting for a command.

    Peers get virtual environments of their own, kept in .venv-peers/. Needs a clone of the repository.
    """
    from fedkeel.cli.bench import carry_out

    typer.echo(f"wrote {carry_out(only, passes, peers)}")


@datasets_app.callback()
@task_options(("data_dir",))
def _datasets(ctx: typer.Context, settings: dict[str, Any], json: Json = False) -> None:
    if ctx.invoked_subcommand is None and json:
        from fedkeel.cli.listings import data_sets, print_json

        print_json(data_sets(settings.get("data_dir")))
    elif ctx.invoked_subcommand is None:
        from fedkeel.cli.tables import dataset_table

        dataset_table(settings.get("data_dir"))
    elif settings:
        raise ValueError(
            f"option --data-dir belongs after the command: fedkeel datasets {ctx.invoked_subcommand} --data-dir"
        )


@datasets_app.command("show")
@task_options(
    ("data_dir", *OWN_DATA, "split", "clients", "concentration", "sizes", "beta_a", "beta_b", "per_client", "split_seed")
)
def show_dataset(
    settings: dict[str, Any],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set. [dim]E.g. digits[/dim]")],
    plot: Annotated[
        Path | None,
        typer.Option(
            help="File for the picture of classes against clients: .svg, .html or .png. [dim]E.g. --plot split.svg[/dim]",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Split a data set among clients and show how much they differ: sizes, label entropy, who has which classes."""
    from fedkeel.cli.listings import print_json, split_facts
    from fedkeel.cli.tables import split_table
    from fedkeel.runs.config import with_split_defaults
    from fedkeel.runs.from_config import federation

    fed = federation(with_split_defaults(merged({"data": name}, settings)))
    if json:
        print_json(split_facts(fed, plot))
    else:
        split_table(fed, plot)
