"""Data sets by name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkeel.data.arrays import Arrays
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset, Federation
from fedkeel.errors import describe, nearest
from fedkeel.user_code import find_object

HUB = "hub:"  # names on the Hugging Face hub start with this
TABLES = (".csv", ".tsv")


def load(name: str, data_dir: str | Path | None = None, augment: str | None = None, **options: Any) -> Dataset:
    """The data set `name`; `fedkeel datasets` lists them. Also your own data: FILE.csv, a folder of pictures, hub:NAME, or
    package.module:function, which returns a Dataset.

    data_dir: the folder that holds the files (default: the environment variable FEDKEEL_DATA).
    augment: "crop-flip" pads, crops and mirrors training images at random.
    options: for your own data: those of `from_csv`, `from_folder`, `from_hub` or of your function.

    >>> load("patients.csv", label="outcome", key="hospital")
    """
    data = load_any(name, data_dir, augment, **options)
    if isinstance(data, Federation):
        raise ValueError(f"data: {name} returns a Federation, which is split already; call it yourself")
    return data


def load_any(
    name: str, data_dir: str | Path | None = None, augment: str | None = None, **options: Any
) -> Dataset | Federation:
    """As `load`. A user's function may also return a Federation."""
    if not isinstance(name, str):
        raise ValueError(f"data: expected a name, not {type(name).__name__}")
    name = next((known for known in names() if known.lower() == name.lower()), name)
    if name in names():
        for option in options:
            raise ValueError(f"{option}: not allowed with data {name!r}; it is for your own files")
        data: Dataset | Federation = _named(name, data_dir)
    else:
        data = _own(name, options)
    if augment is None:
        return data
    from fedkeel.data.transforms import augmentation

    return dataclasses.replace(data, augment=augmentation(augment, tuple(getattr(data.x, "shape", ()))[1:]))


def _named(name: str, data_dir: str | Path | None) -> Dataset:
    if name == "digits":
        return digits()
    if name in packaged():
        return _from_package(name)
    from fedkeel.data.named_sets import load_named

    return load_named(name, data_folder(data_dir))


def _own(name: str, options: dict[str, Any]) -> Dataset | Federation:
    """Data that are not in the catalogue."""
    read, where = _reader(name)
    known = inspect.signature(read).parameters
    flexible = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for option in options:
        if option not in known and not flexible:
            raise ValueError(f"{option}: not allowed with data {name!r}{nearest(option, known) if known else ''}")
    data: Dataset | Federation = read(*where, **options)
    if not isinstance(data, Dataset | Federation):
        raise ValueError(f"data: {name} returned a {type(data).__name__}, not a fedkeel.Dataset or fedkeel.Federation")
    return data


def _reader(name: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function that reads own data, and its first argument."""
    path = Path(name).expanduser()
    if name.startswith(HUB):
        from fedkeel.data.readers.hub import from_hub

        return from_hub, (name.removeprefix(HUB),)
    if path.is_dir():
        from fedkeel.data.readers.picture_folder import from_folder

        return from_folder, (name,)
    if path.is_file() or path.name.lower().removesuffix(".gz").removesuffix(".xz").endswith(TABLES):
        from fedkeel.data.readers.csv_table import from_csv

        return from_csv, (name,)
    if ":" in name:
        found = find_object("data", name, "package.module:function")
        if not callable(found):
            raise ValueError(f"data: {name} is a {type(found).__name__}; it must be a function that returns a Dataset")
        return _careful(name, found), ()
    if len(path.parts) > 1:
        raise ValueError(f"data: there is no file or folder {name}")
    own = f"your own data are FILE.csv, a folder, {HUB}NAME or package.module:function"
    raise ValueError(f"data: unknown name {name!r}{nearest(name, names())}; {own}")


def _careful(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function. If it fails, the error names it."""

    @functools.wraps(function)
    def call(**options: Any) -> Any:
        try:
            return function(**options)
        except (Exception, SystemExit) as error:
            raise ValueError(f"data: {name} failed: {describe(error)}") from error

    return call


def short_name(data: str) -> str:
    """A name of data that a directory can have: patients for own/patients.csv."""
    last = data.removeprefix(HUB).rstrip("/").replace("\\", "/").rpartition("/")[2]
    return last.rpartition(":")[2].partition(".")[0] or "data"


def names() -> list[str]:
    from fedkeel.data.catalogue import CATALOGUE

    return ["digits", *CATALOGUE, *packaged()]


@functools.cache
def packaged() -> dict[str, EntryPoint]:
    """The data sets of installed packages, by the entry point `fedkeel.datasets`: functions that return a Dataset."""
    from fedkeel.data.catalogue import CATALOGUE

    return {one.name: one for one in entry_points(group="fedkeel.datasets") if one.name not in ("digits", *CATALOGUE)}


def _from_package(name: str) -> Dataset:
    where = packaged()[name].value
    try:
        data = packaged()[name].load()()
    except Exception as error:
        raise ValueError(f"data: {name} of {where} failed: {type(error).__name__}: {error}") from error
    if not isinstance(data, Dataset):
        raise ValueError(f"data: {name} of {where} returned a {type(data).__name__}, not a fedkeel.Dataset")
    return data


def data_folder(data_dir: str | Path | None = None) -> Path | None:
    """The data directory: the argument, or else the environment variable FEDKEEL_DATA. None if neither is set."""
    given = data_dir or os.environ.get("FEDKEEL_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        where = "data_dir" if data_dir else "FEDKEEL_DATA"
        raise ValueError(f"{where} = {str(given)!r} is not allowed; it must be a folder that exists")
    return folder


@functools.cache
def digits() -> Dataset:
    """Handwritten digits, part of scikit-learn (UCI, Alpaydin and Kaynak); 1,437 + 360 images of 8 x 8, 10 classes."""
    arrays = cached("digits", f"scikit-learn {version('scikit-learn')}", [], _read_digits)
    x, y, x_test, y_test = (torch.from_numpy(arrays[name]) for name in ("x", "y", "x_test", "y_test"))
    return Dataset("digits", x, y, (x_test, y_test))


def _read_digits() -> Arrays:
    """The result goes to the cache, because importing scikit-learn takes longer than a small run."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[:, None]  # [n, 1, 8, 8] in [0, 1]
    parts = train_test_split(images, bunch.target, test_size=0.2, random_state=0, stratify=bunch.target)
    return {name: np.ascontiguousarray(z) for name, z in zip(("x", "x_test", "y", "y_test"), parts, strict=True)}
