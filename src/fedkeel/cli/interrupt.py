"""What is said when a command is stopped in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import typer

import fedkeel


@contextlib.contextmanager
def stopped(command: str, kept: Callable[[], bool]) -> Iterator[None]:
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
