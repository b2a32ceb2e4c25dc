"""What the command line says about an error: one line, and the exit code 2 for bad input or 1 for a run that failed."""

from __future__ import annotations

import typer

from fedkeel.errors import RoundError, StorageError

LONGEST_MESSAGE = 4000  # characters

# What other programs call a command -> the command here.
COMMANDS = {"train": "run", "fit": "run", "simulate": "run", "methods": "algorithms", "data": "datasets"}


def _command_hint(message: str) -> str:
    """The end of the message about an unknown command: the command that is probably meant."""
    given = message.partition("No such command '")[2].partition("'")[0]
    known = COMMANDS.get(given.lower())
    return " To train one method: fedkeel run" if known == "run" else f" Did you mean fedkeel {known}?" if known else ""


def _shortened(message: str) -> str:
    """The message without its middle if it is very long, because the user has given a very long name."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:1000]} ... {message[-500:]}"


def explained(error: Exception) -> tuple[str, int]:
    """The message of an error in one line, and the exit code."""
    message, code = _message(error)
    return _shortened(" ".join(message.split())), code


def _message(error: Exception) -> tuple[str, int]:
    if isinstance(error, typer.Abort):
        return "interrupted", 130
    if hasattr(error, "format_message"):  # typer's own: a missing argument, an unknown command
        return error.format_message() + _command_hint(error.format_message()), 2
    message = "; ".join([str(error), *getattr(error, "__notes__", ())])
    missing_package = isinstance(error, ImportError) and error.name is None  # Python's own errors have a name
    if isinstance(error, ValueError) or missing_package:
        return message, 2
    if isinstance(error, OSError) and error.filename is not None:  # a path that the user gave cannot be used
        return f"{error.strerror}: {error.filename}", 2
    if isinstance(error, StorageError | RoundError):
        return message, 2 if isinstance(error, StorageError) else 1
    return f"unexpected {type(error).__name__}: {message} (--debug shows the traceback)", 1
