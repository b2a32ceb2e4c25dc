"""A user's own files: pictures in a folder per class, and comma-separated tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedkeel.data.assemble import dataset, with_stats
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.files import Arrays, broken
from fedkeel.data.readers.images import held_out, pictures
from fedkeel.data.readers.tables import Table, encoded, numbered, owners, table_of
from fedkeel.errors import nearest

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def from_folder(path: str | Path, size: int | None = None) -> Dataset:
    """Pictures in one folder per class; with folders train and test in it, those, else a fifth is held out for testing.

    Every class of test must be in train.

    size: brings all pictures to size x size; otherwise they must be of one size.

    >>> from_folder("~/flowers", size=64).split("iid", clients=10)
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"data: there is no folder {root}")
    parts = [root]
    if (root / "train").is_dir():
        parts = [root / "train", next((root / name for name in ("test", "val") if (root / name).is_dir()), root / "test")]
    _check_classes(parts)  # not by the reader: the cache may hold what was read without this check
    arrays = cached(root.name, f"folder {size}", [root], lambda: _read_folder(parts, size))
    return dataset(root.name, arrays)


def _folders(part: Path) -> list[str]:
    return sorted(folder.name for folder in part.iterdir() if folder.is_dir()) if part.is_dir() else []


def _pictures(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix.lower() in PICTURES] if folder.is_dir() else []


def _check_classes(parts: Sequence[Path]) -> None:
    """Refuses classes that only the test part has; a folder without pictures is none."""
    train, test = parts[0], parts[-1]
    known = _folders(train)
    unknown = [name for name in _folders(test) if name not in known and _pictures(test / name)]
    if unknown:
        shown = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        raise ValueError(f"data: {test} has classes that {train} has not: {shown}; every class must be in {train.name}")


def _read_folder(parts: Sequence[Path], size: int | None) -> Arrays:
    names = _folders(parts[0])
    found = []
    for part in parts:
        files = [(file, label) for label, name in enumerate(names) for file in _pictures(part / name)]
        if not files:
            raise broken(part, "there are no folders of pictures, one for each class")
        found.append((pictures([file for file, _ in files], size), np.array([label for _, label in files], dtype=np.int64)))
    if len(found) == 1:
        return with_stats(held_out(*found[0]))
    (x, y), (test_x, test_y) = found
    return with_stats({"x": x, "y": y, "test_x": test_x, "test_y": test_y})


def from_csv(path: str | Path, label: str | None = None, test: str | Path | None = None, key: str | None = None) -> Dataset:
    """A comma-separated table with a heading. Numbers are standardised, words become a column each.

    A column is one of numbers if nine in ten of its training cells are, not counting the missing ones (empty, ?, NA, nan,
    inf ...). A cell of it that is no finite number is an error; fill it in before. In a column of words an empty cell is a
    word like any other, and a word that the training rows have not is 0 everywhere.

    label: the column of classes (default: the last).  test: another table with the same columns (default: a fifth of the
    rows).  key: a column that says whose a row is, as it is written, for the split `by_key`; it is not among the inputs.

    >>> from_csv("patients.csv", label="outcome", key="hospital").split("by_key", clients=12)
    """
    files = [Path(z).expanduser() for z in (path, test) if z is not None]
    tables = _read_tables(files, [name for name in (label, key) if name is not None])
    heading, n = tables[0].heading, len(tables[0].rows)
    rows, places = [row for table in tables for row in table.rows], [place for table in tables for place in table.places]
    target = heading.index(label) if label is not None else len(heading) - 1
    owner = None if key is None else heading.index(key)
    inputs = [i for i in range(len(heading)) if i not in (target, owner)]
    if not inputs:
        raise ValueError(f"data: {files[0]} has no column of inputs, only {', '.join(heading)}; it must have at least one")
    for row, (file, number) in zip(rows, places, strict=True):
        if not row[target]:
            raise ValueError(f"data: {file} has no {heading[target]!r} in row {number}; every row must have its class")
    y = numbered([row[target] for row in rows])
    split = held_out(np.arange(n), y) if len(tables) == 1 else {"x": np.arange(n), "test_x": np.arange(n, len(rows))}
    body = Table([heading[i] for i in inputs], [[row[i] for i in inputs] for row in rows], places)
    x, test_x = encoded(body, split["x"], split["test_x"])
    keys = None if owner is None else owners([rows[i][owner] for i in split["x"]])
    tensors = (torch.from_numpy(z) for z in (x, y[split["x"]], test_x, y[split["test_x"]]))
    x_train, y_train, x_test, y_test = tensors
    return Dataset(files[0].stem, x_train, y_train, (x_test, y_test), key=keys, classes=int(y.max()) + 1)


def _read_tables(files: Sequence[Path], names: Sequence[str]) -> list[Table]:
    """The table, and that for testing if there is one; names: columns that they must have."""
    tables = [table_of(file) for file in files]
    heading, n = tables[0].heading, len(tables[0].rows)
    for name in names:
        if name not in heading:
            raise ValueError(f"data: {files[0]} has no column {name!r}{nearest(name, heading)}")
    if len(tables) == 2 and tables[1].heading != heading:
        raise broken(files[1], f"its columns are {', '.join(tables[1].heading)}, not {', '.join(heading)}")
    if len(tables) == 1 and n < 5:
        raise ValueError(f"data: {files[0]} has {n} rows; it must have 5, so that one can be held out, or give test=")
    return tables
