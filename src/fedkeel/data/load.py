"""Data sets by name: found in the data directory or on the hub, parsed once, mapped into memory."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from fedkeel.data.assemble import dataset, with_stats
from fedkeel.data.cache import cached
from fedkeel.data.catalogue import CATALOGUE
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.files import Arrays, broken, find
from fedkeel.data.source import Form, Source
from fedkeel.data.transforms import Normalise, augmentation
from fedkeel.errors import nearest

log = logging.getLogger("fedkeel")


@functools.cache
def digits() -> Dataset:
    """Handwritten digits, part of scikit-learn (UCI, Alpaydin and Kaynak); 1,437 + 360 images of 8 x 8, 10 classes."""
    arrays = cached("digits", f"scikit-learn {version('scikit-learn')}", [], _digits)
    x, y, x_test, y_test = (torch.from_numpy(arrays[name]) for name in ("x", "y", "x_test", "y_test"))
    return Dataset("digits", x, y, (x_test, y_test))


def _digits() -> Arrays:
    """Kept in the cache, for to import scikit-learn takes longer than a small run."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[:, None]  # [n, 1, 8, 8] in [0, 1]
    parts = train_test_split(images, bunch.target, test_size=0.2, random_state=0, stratify=bunch.target)
    return {name: np.ascontiguousarray(z) for name, z in zip(("x", "x_test", "y", "y_test"), parts, strict=True)}


def names() -> list[str]:
    return ["digits", *CATALOGUE]


def load(name: str, data_dir: str | Path | None = None, augment: str | None = None) -> Dataset:
    """The data set `name`; `fedkeel datasets` lists them.

    data_dir: where its files are looked for (default: the environment variable FEDKEEL_DATA).
    augment: "crop-flip" pads, crops and mirrors training images at random.
    """
    if not isinstance(name, str):
        raise ValueError(f"data: expected a name, not {type(name).__name__}")
    if name == "digits":
        data = digits()
    elif name in CATALOGUE:
        data = _from_catalogue(name, data_folder(data_dir))
    else:
        raise ValueError(f"data: unknown name {name!r}{nearest(name, names())}")
    if augment is None:
        return data
    return dataclasses.replace(data, augment=augmentation(augment, tuple(getattr(data.x, "shape", ()))[1:]))


def data_folder(data_dir: str | Path | None = None) -> Path | None:
    """The data directory that was given, or that of the environment."""
    given = data_dir or os.environ.get("FEDKEEL_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        where = "data_dir" if data_dir else "FEDKEEL_DATA"
        raise ValueError(f"{where} = {str(given)!r} is not allowed; it must be a folder, and there is none")
    return folder


# Where it is ----------------------------------------------------------------------------------------------------------


def locate(name: str, folder: Path | None) -> tuple[Form, list[Path | None]] | None:
    """The first form of a data set that is here, and its files."""
    source = CATALOGUE[name]
    for form in source.forms:
        for place in _places(source, form, folder):
            paths = [find(place, file.removeprefix("?")) for file in form.files]
            if all(path or file.startswith("?") for path, file in zip(paths, form.files, strict=True)):
                return form, paths
    return None


def _places(source: Source, form: Form, folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield from (folder / name for name in source.folders if not name.startswith("/"))
        if form.own or folder.resolve().name in source.folders:
            yield folder
    yield from (Path(name) for name in source.folders if name.startswith("/"))


def _fetched(name: str, folder: Path | None) -> Dataset:
    """A data set that is not on disk, from the hub; if that cannot serve either, one error that says what to do."""
    source = CATALOGUE[name]
    why = ""
    if source.hub is not None:
        from fedkeel.data.readers.hub import from_hub

        try:
            data = from_hub(**dataclasses.asdict(source.hub))
        except ValueError as error:
            why = f"; {str(error).removeprefix('data: ')}"
        else:
            prepare = data.prepare if source.stats is None else Normalise(*source.stats)
            return dataclasses.replace(data, name=name, prepare=prepare, classes=source.classes or data.classes)
    looked = f"is not in {folder}" if folder else "needs a data directory (data_dir=, --data-dir or FEDKEEL_DATA)"
    raise ValueError(f"data: {name!r} {looked}; put {source.wanted} into {folder or 'it'}{why}")


# What it is -----------------------------------------------------------------------------------------------------------


def _from_catalogue(name: str, folder: Path | None) -> Dataset:
    source = CATALOGUE[name]
    found = locate(name, folder)
    if found is None:
        return _fetched(name, folder)
    form, paths = found
    if form.note:
        _tell(name, form.note)
    arrays = cached(form.name or name, repr(form.files), paths, lambda: _checked(name, source, form, paths))
    return dataset(form.name or name, arrays, source.stats, source.classes, source.vocabulary)


@functools.cache
def _tell(name: str, note: str) -> None:
    log.warning("data: what is here of %s is not all of it: %s", name, note)


def _checked(name: str, source: Source, form: Form, paths: list[Path | None]) -> Arrays:
    """The arrays that the files hold, if they are as many as there must be, with labels that can be."""
    arrays = form.read(*paths)
    counts = len(arrays["y"]), len(arrays["test_y"])
    first = next(path for path in paths if path)
    if form.counts is not None and counts != form.counts:
        wanted = " + ".join(f"{n:,}" for n in form.counts)
        raise broken(first, f"{name} has {wanted} samples, these files {counts[0]:,} + {counts[1]:,}")
    for part in ("", "test_"):
        y = arrays[f"{part}y"]
        n = len(arrays[f"{part}x"]) if f"{part}x" in arrays else len(arrays[f"{part}x.offsets"]) - 1
        if n != len(y):
            raise broken(first, f"{n:,} samples but {len(y):,} labels")
        if y.min() < 0 or (source.classes is not None and y.max() >= source.classes):
            raise broken(first, f"its labels go from {y.min()} to {y.max()}")
    return arrays if source.stats else with_stats(arrays)
