"""Data sets by name."""

from __future__ import annotations

import dataclasses
import functools
import os
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import numpy as np
import torch

from fedkeel.data.arrays import Arrays
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset
from fedkeel.errors import nearest


def load(name: str, data_dir: str | Path | None = None, augment: str | None = None) -> Dataset:
    """The data set `name`; `fedkeel datasets` lists them.

    data_dir: the folder that holds the files (default: the environment variable FEDKEEL_DATA).
    augment: "crop-flip" pads, crops and mirrors training images at random.
    """
    if not isinstance(name, str):
        raise ValueError(f"data: expected a name, not {type(name).__name__}")
    if name.lower() == "digits":
        data = digits()
    elif (name := next((known for known in names() if known.lower() == name.lower()), name)) in packaged():
        data = _from_package(name)
    elif name in names():
        from fedkeel.data.named_sets import load_named

        data = load_named(name, data_folder(data_dir))
    else:
        raise ValueError(f"data: unknown name {name!r}{nearest(name, names())}")
    if augment is None:
        return data
    from fedkeel.data.transforms import augmentation

    return dataclasses.replace(data, augment=augmentation(augment, tuple(getattr(data.x, "shape", ()))[1:]))


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
