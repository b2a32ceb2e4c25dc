"""Loads a data set of the catalogue: finds its files in the data directory or asks the hub, then parses and checks them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
from collections.abc import Iterator
from pathlib import Path

from fedkeel.data.arrays import Arrays, with_channel_statistics
from fedkeel.data.cache import cached
from fedkeel.data.catalogue import CATALOGUE, Layout, NamedSet
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.file_contents import broken, reading
from fedkeel.data.to_dataset import to_dataset
from fedkeel.data.transforms import Normalise

log = logging.getLogger("fedkeel")


def load_named(name: str, folder: Path | None) -> Dataset:
    """The data set `name` of the catalogue.  folder: the data directory."""
    described = CATALOGUE[name]
    located = locate(name, folder)
    if located is None:
        return _from_hub(name, folder)
    layout, paths = located
    if layout.note:
        _warn_partial(name, layout.note)
    arrays = cached(layout.name or name, repr(layout.files), paths, lambda: _read(name, described, layout, paths))
    statistics = described.channel_statistics
    return to_dataset(layout.name or name, arrays, statistics, described.classes, described.vocabulary)


@functools.cache
def _warn_partial(name: str, note: str) -> None:
    log.warning("data: these files are only a part of %s: %s", name, note)


# Find the files -------------------------------------------------------------------------------------------------------


def locate(name: str, folder: Path | None) -> tuple[Layout, list[Path | None]] | None:
    """The first layout of a data set whose files are here, and these files."""
    described = CATALOGUE[name]
    for layout in described.layouts:
        for place in _places(described, layout, folder):
            paths = [find(place, file.removeprefix("?")) for file in layout.files]
            if all(path or file.startswith("?") for path, file in zip(paths, layout.files, strict=True)):
                return layout, paths
    return None


def _places(described: NamedSet, layout: Layout, folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield from (folder / name for name in described.folders if not name.startswith("/"))
        if layout.distinctive or folder.resolve().name in described.folders:
            yield folder
    yield from (Path(name) for name in described.folders if name.startswith("/"))


def find(folder: Path, name: str) -> Path | None:
    """A file or folder by its name, packed or not; "a|b" means either name.

    If the name has a "*", the folder that holds the matching files.
    """
    for either in name.split("|"):
        for packing in ("", ".gz", ".xz"):
            wanted = either + packing
            if "*" in wanted:
                if matches := sorted(folder.glob(wanted)):
                    return matches[0].parent
            elif (folder / wanted).exists():
                return folder / wanted
    return None


# Read them ------------------------------------------------------------------------------------------------------------


def _read(name: str, described: NamedSet, layout: Layout, paths: list[Path | None]) -> Arrays:
    """The arrays in the files. Raises ValueError if the number of samples or a label is wrong."""
    module, _, function = layout.reader.partition(":")
    reader = importlib.import_module(f"fedkeel.data.readers.{module}")
    first = next(path for path in paths if path)
    with reading(first):
        arrays: Arrays = getattr(reader, function)(*paths, **layout.options)
        counts = len(arrays["y"]), len(arrays["test_y"])
    if not all(counts):
        raise broken(first, "it has no samples")
    if layout.counts is not None and counts != layout.counts:
        wanted = " + ".join(f"{n:,}" for n in layout.counts)
        raise broken(first, f"{name} has {wanted} samples, these files have {counts[0]:,} + {counts[1]:,}")
    for part in ("", "test_"):
        y = arrays[f"{part}y"]
        n = len(arrays[f"{part}x"]) if f"{part}x" in arrays else len(arrays[f"{part}x.offsets"]) - 1
        if n != len(y):
            raise broken(first, f"{n:,} samples but {len(y):,} labels")
        if y.min() < 0 or (described.classes is not None and y.max() >= described.classes):
            raise broken(first, f"its labels go from {y.min()} to {y.max()}")
    return arrays if described.channel_statistics else with_channel_statistics(arrays)


# Ask the hub ----------------------------------------------------------------------------------------------------------


def _from_hub(name: str, folder: Path | None) -> Dataset:
    """A data set that is not on disk. If the hub does not have it either, one error says which file to put where."""
    described = CATALOGUE[name]
    reason = ""
    if described.hub is not None:
        from fedkeel.data.readers.hub import from_hub

        try:
            data = from_hub(**dataclasses.asdict(described.hub))
        except (ValueError, ImportError) as error:
            reason = f"; {str(error).removeprefix('data: ')}"
        else:
            statistics = described.channel_statistics
            prepare = data.prepare if statistics is None else Normalise(*statistics)
            return dataclasses.replace(data, name=name, prepare=prepare, classes=described.classes or data.classes)
    missing = f"is not in {folder}" if folder else "needs a data directory (data_dir=, --data-dir or FEDKEEL_DATA)"
    raise ValueError(f"data: {name!r} {missing}; put {described.wanted} into {folder or 'it'}{reason}")
