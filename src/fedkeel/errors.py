"""The error classes of the package, and functions that put errors into words."""

from __future__ import annotations

import difflib
from typing import Any


def nearest(word: str, known: Any) -> str:
    """The end of an error message: the names that look like `word`, or all names if none does."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; known: {', '.join(sorted(known))}"


def refuse(name: str, value: object, allowed: str) -> ValueError:
    """The error for a setting with a value that is not allowed."""
    return ValueError(f"{name} = {value!r} is not allowed; it must be {allowed}")


class RoundError(RuntimeError):
    """A round that could not be completed: which method, round, client and stage, and why."""

    def __init__(self, algorithm: str, round: int, client: int | None, stage: str, why: str) -> None:
        self.algorithm, self.round, self.client, self.stage, self.why = algorithm, round, client, stage, why
        where = f", client {client}" if client is not None else ""
        super().__init__(f"{algorithm}, round {round}{where}, {stage}: {why}")

    def __reduce__(self) -> tuple[Any, ...]:  # otherwise unpickling fails, which breaks a pool of processes
        return type(self), (self.algorithm, self.round, self.client, self.stage, self.why)


class NotFinite(ValueError):
    """A record contains NaN or infinity."""


class OutOfRange(ValueError):
    """A record contains a number that its field cannot have, such as a negative second moment."""


def describe(error: BaseException) -> str:
    """The error in one line, with the name of its class."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception of a client's code whose text cannot be made
        text = ""
    return printable(f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__)


def printable(text: str) -> str:
    """The text without characters that a terminal would obey, such as the escape codes of colours and cursors."""
    return "".join(z if z.isprintable() else "?" for z in text)


def in_words(error: BaseException) -> str:
    """The error as a user reads it: only the text of errors that are raised on purpose, and the class of any other, too."""
    return str(error) if isinstance(error, ValueError | RuntimeError) else describe(error)


class StorageError(RuntimeError):
    """The run's directory cannot be written. What was there before is intact."""


class Busy(ValueError):
    """Another run uses the directory."""


class Damaged(ValueError):
    """A file of a run does not hold what was written to it."""
