"""A user's own files: pictures in a folder per class, and comma-separated tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedkeel.core.algorithm import nearest
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset
from fedkeel.data.files import Arrays, broken
from fedkeel.data.images import held_out, pictures
from fedkeel.data.parsed import dataset, with_stats
from fedkeel.data.tables import encoded, numbered, rows_of

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def from_folder(path: str | Path, size: int | None = None) -> Dataset:
    """Pictures in one folder per class; with folders train and test in it, those, else a fifth is held out for testing.

    size: brings all pictures to size x size; otherwise they must be of one size.

    >>> from_folder("~/flowers", size=64).split("iid", clients=10)
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"data: there is no folder {root}")
    arrays = cached(root.name, f"folder {size}", [root], lambda: _read_folder(root, size))
    return dataset(root.name, arrays)


def _read_folder(root: Path, size: int | None) -> Arrays:
    parts = [root]
    if (root / "train").is_dir():
        parts = [root / "train", next((root / name for name in ("test", "val") if (root / name).is_dir()), root / "test")]
    names = sorted(folder.name for folder in parts[0].iterdir() if folder.is_dir())
    found = []
    for part in parts:
        files = [
            (file, label)
            for label, name in enumerate(names)
            for file in (sorted((part / name).iterdir()) if (part / name).is_dir() else [])
            if file.suffix.lower() in PICTURES
        ]
        if not files:
            raise broken(part, "there are no folders of pictures, one for each class")
        found.append((pictures([file for file, _ in files], size), np.array([label for _, label in files], dtype=np.int64)))
    if len(found) == 1:
        return with_stats(held_out(*found[0]))
    (x, y), (test_x, test_y) = found
    return with_stats({"x": x, "y": y, "test_x": test_x, "test_y": test_y})


def from_csv(path: str | Path, label: str | None = None, test: str | Path | None = None, key: str | None = None) -> Dataset:
    """A comma-separated table with a heading. Numbers are standardised, words become a column each.

    label: the column of classes (default: the last).  test: another table with the same columns (default: a fifth of the
    rows).  key: a column that says whose a row is, for the split `by_key`; it is not among the inputs.

    >>> from_csv("patients.csv", label="outcome", key="hospital").split("by_key", clients=12)
    """
    files = [Path(z).expanduser() for z in (path, test) if z is not None]
    tables = [rows_of(file) for file in files]
    heading = tables[0][0]
    for name in (label, key):
        if name is not None and name not in heading:
            raise ValueError(f"data: {files[0]} has no column {name!r}{nearest(name, heading)}")
    if len(tables) == 2 and tables[1][0] != heading:
        raise broken(files[1], f"its columns are {', '.join(tables[1][0])}, not {', '.join(heading)}")
    target = heading.index(label) if label is not None else len(heading) - 1
    owner = None if key is None else heading.index(key)
    body = [row for table in tables for row in table[1:]]
    y, _ = numbered([row[target] for row in body])
    n = len(tables[0]) - 1
    split = held_out(np.arange(n), y) if len(tables) == 1 else {"x": np.arange(n), "test_x": np.arange(n, len(body))}
    inputs = [[cell for i, cell in enumerate(row) if i not in (target, owner)] for row in body]
    x, test_x = encoded([inputs[i] for i in split["x"]], [inputs[i] for i in split["test_x"]])
    keys = None if owner is None else numbered([body[i][owner] for i in split["x"]])[0]
    tensors = (torch.from_numpy(z) for z in (x, y[split["x"]], test_x, y[split["test_x"]]))
    x_train, y_train, x_test, y_test = tensors
    return Dataset(files[0].stem, x_train, y_train, (x_test, y_test), key=keys, classes=int(y.max()) + 1)
