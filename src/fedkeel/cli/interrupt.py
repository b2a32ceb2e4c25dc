"""What the command line says about a command that was stopped."""

from __future__ import annotations

import signal
import threading
from types import FrameType

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
