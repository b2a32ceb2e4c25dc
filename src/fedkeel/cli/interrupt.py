"""What the command line says about a command that was stopped."""

from __future__ import annotations

import typer

from fedkeel.errors import RoundError


def stopped(error: KeyboardInterrupt | RoundError, command: str, kept: bool) -> typer.Exit | RoundError:
    """What to raise after Ctrl-C or a failed round. It says how to go on if something was kept.

    command: the command that goes on.
    """
    if isinstance(error, KeyboardInterrupt):
        typer.echo(f"interrupted; go on with: {command}" if kept else "interrupted before the first round", err=True)
        return typer.Exit(130)
    if kept:
        error.add_note(f"go on with: {command}")
    return error
