"""Pictures in one folder per class: `from_folder`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedkeel.data.arrays import Arrays, held_out, with_channel_statistics
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.csv_table import owners
from fedkeel.data.readers.file_contents import broken
from fedkeel.data.readers.pictures import pictures
from fedkeel.data.schema import Schema, load_schema
from fedkeel.data.to_dataset import statistics_of, to_dataset
from fedkeel.errors import nearest

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def from_folder(
    path: str | Path,
    size: int | None = None,
    key: str | Callable[[Path], object] | None = None,
    schema: Schema | str | Path | None = None,
) -> Dataset:
    """Pictures in one folder per class. If there is no test part, a fifth is held out for testing.

    A test part is a folder `test` or `val` beside a folder `train`. Every class of it must be in `train`.

    size: scales all pictures to size x size. Without it they must have one size.
    key: the owner of a picture, for the split `by_key`: a regular expression that is searched in the path below `path` (its
        group, if it has one, is the owner), or a function of the path.
    schema: how another folder was read: its `data.schema`, a JSON file, or the directory of a run. Then class numbers, size,
        means and deviations are those of that folder, and a class that it does not have is refused.

    >>> from_folder("~/flowers", size=64).split("iid", clients=10)
    >>> from_folder("scans", key=r"patient(\\d+)").split("by_key", clients=20)
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"data: there is no folder {root}")
    parts = [root]
    if (root / "train").is_dir():
        parts = [root / "train", next((root / name for name in ("test", "val") if (root / name).is_dir()), root / "test")]
    _check_classes(parts)  # here and not in the reader: an old cache may hold pictures that were read without this check
    known = None if schema is None else load_schema(schema)
    names = _folders(parts[0]) if known is None else _names_of(known, parts)
    if known is not None and size is None:
        size = known.shape[1]
    request = f"folder {size}" if known is None else f"folder {size} {names}"
    arrays = cached(root.name, request, [root], lambda: _read_folder(parts, size, names))
    if key is not None:
        arrays = arrays | {"key": _owners(root, parts, names, key)}
    if known is None:
        if len(names) == 1:
            raise ValueError(
                f"data: {root} has one class, {names[0]!r}; a model needs two at least. If this is the folder of one site "
                "of several, pass schema= with the schema of all"
            )
        mean, std = statistics_of(arrays)
        known = Schema(tuple(names), mean=mean, std=std, shape=arrays["x"].shape[1:])
    elif arrays["x"].shape[1:] != known.shape:
        raise ValueError(f"data: the pictures of {root} have shape {list(arrays['x'].shape[1:])}, not {list(known.shape)}")
    data = to_dataset(root.name, arrays, (known.mean, known.std), len(names))
    return dataclasses.replace(data, schema=known)


def _names_of(schema: Schema, parts: Sequence[Path]) -> list[str]:
    """The classes of a schema, after a check that these folders have no other."""
    if schema.classes is None or not schema.shape:
        raise ValueError("schema: it describes a table, not pictures")
    for part in parts:
        for name in _folders(part):
            if name not in schema.classes and _pictures(part / name):
                raise ValueError(
                    f"data: {part} has the class {name!r}, which the schema does not know{nearest(name, schema.classes)}"
                )
    return list(schema.classes)


def _owners(root: Path, parts: Sequence[Path], names: Sequence[str], key: str | Callable[[Path], object]) -> np.ndarray:
    """The owner of every training picture, as a number."""
    files = [file for name in names for file in _pictures(parts[0] / name)]
    found = []
    for file in files:
        if callable(key):
            found.append(str(key(file)))
            continue
        match = re.search(key, file.relative_to(root).as_posix())
        if match is None:
            raise ValueError(f"key = {key!r} is not allowed; it does not match {file.relative_to(root).as_posix()!r}")
        found.append(match[1] if match.re.groups else match[0])
    numbers = owners(found)
    return numbers if len(parts) == 2 else held_out(np.arange(len(files)), np.arange(len(files)), numbers)["key"]


def _folders(part: Path) -> list[str]:
    return sorted(folder.name for folder in part.iterdir() if folder.is_dir()) if part.is_dir() else []


def _pictures(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix.lower() in PICTURES] if folder.is_dir() else []


def _check_classes(parts: Sequence[Path]) -> None:
    """Refuses classes that only the test part has. A folder without pictures is not a class."""
    train, test = parts[0], parts[-1]
    known = _folders(train)
    unknown = [name for name in _folders(test) if name not in known and _pictures(test / name)]
    if unknown:
        shown = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        raise ValueError(f"data: {test} has classes that are not in {train}: {shown}; every class must be in {train.name}")


def _read_folder(parts: Sequence[Path], size: int | None, names: Sequence[str]) -> Arrays:
    read = []
    for part in parts:
        files = [(file, label) for label, name in enumerate(names) for file in _pictures(part / name)]
        if not files:
            raise broken(part, "there are no folders of pictures; it needs one folder per class")
        read.append((pictures([file for file, _ in files], size), np.array([label for _, label in files], dtype=np.int64)))
    if len(read) == 1:
        return with_channel_statistics(held_out(*read[0]))
    (x, y), (test_x, test_y) = read
    return with_channel_statistics({"x": x, "y": y, "test_x": test_x, "test_y": test_y})
