"""How a data set that has a name is described: what it is, and the forms in which it may lie on disk or on the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedkeel.data.readers.files import Arrays


@dataclass(frozen=True)
class Form:
    """One way in which a data set lies on disk: files in one folder, and what reads them."""

    files: tuple[str, ...]  # "a|b" is either name, "?a" may be missing; packed (.gz, .xz) or not
    read: Callable[..., Arrays]  # called with a path for each of them
    own: bool = False  # the names say whose they are, so they may lie in the data directory itself
    counts: tuple[int, int] | None = None  # training and test samples that there must be
    name: str | None = None  # of a form that is not the whole set
    note: str = ""  # how such a form differs from the published set


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub."""

    name: str
    config: str | None = None
    x: tuple[str, ...] = ("text",)  # columns
    y: str = "label"
    key: str | None = None
    test: str | None = "test"  # None: a part of the training set is held out


@dataclass(frozen=True)
class Source:
    about: str
    size: str
    folders: tuple[str, ...]  # where its files are looked for, below the data directory
    wanted: str  # which file to put where
    forms: tuple[Form, ...]
    hub: Hub | None = None
    stats: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # published mean and deviation of the channels
    classes: int | None = None
    vocabulary: int | None = None
