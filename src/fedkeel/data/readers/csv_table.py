"""Comma-separated tables: `from_csv`, and the coding of columns as x [n, columns] float32."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedkeel.data.arrays import held_out
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.file_contents import broken, contents, reading
from fedkeel.errors import nearest

MISSING = ("", "?", "-", "na", "n/a", "#n/a", "nan", "null", "none", "inf", "-inf")  # in upper or lower case
NUMERIC_SHARE = 0.9  # of the non-missing cells of a numeric column are numbers


class Table(NamedTuple):
    heading: list[str]
    rows: list[list[str]]
    places: list[tuple[Path, int]]  # for every row: its file and its number in the file


def encoded(table: Table, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The training rows and the test rows as float32.  train, test: row numbers.

    The training rows decide whether a column is numeric (see `_numeric`). Then every cell must be a finite number, in the
    test rows too. A text column becomes one column of 0 and 1 for each word of the training rows. An empty cell is a word.
    """
    columns = []
    for name, column in zip(table.heading, zip(*table.rows, strict=True), strict=True):
        cells = np.array(column)
        if not _numeric(cells[train]):
            columns += [cells == word for word in np.unique(cells[train])]
            continue
        x = _numbers(cells)
        if not np.isfinite(x).all():
            raise _not_finite(table, name, int(np.argmin(np.isfinite(x))), column)
        columns.append((x - x[train].mean()) / (x[train].std() or 1.0))
    coded = np.stack(columns, axis=1).astype(np.float32)
    return coded[train], coded[test]


def _not_finite(table: Table, name: str, i: int, column: Sequence[str]) -> ValueError:
    path, row = table.places[i]
    return ValueError(
        f"data: {path} has {column[i]!r} in row {row} of the column {name!r}, where it must be a finite number as in the "
        "other rows; fill it in, remove the row, or write the numbers as words (n1, n2) if they are names"
    )


def _numeric(cells: np.ndarray) -> bool:
    """A column is numeric if 90 % of its non-missing cells are finite numbers.

    So a single typing error in a column of numbers is reported. Otherwise it would turn every number into a word.
    """
    filled = cells[~np.isin(np.char.lower(cells), MISSING)]
    return len(filled) > 0 and float(np.isfinite(_numbers(filled)).mean()) >= NUMERIC_SHARE


def _numbers(cells: np.ndarray) -> np.ndarray:
    """Cells as numbers. A cell that is not a number becomes NaN."""
    try:
        return cells.astype(np.float64)
    except ValueError:
        return np.array([_number(cell) for cell in cells])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def read_table(path: Path) -> Table:
    """A comma-separated file with a heading. Blanks around cells and empty rows are dropped."""
    with reading(path):
        text = contents(path).decode("utf-8-sig")  # Excel starts a file with a byte-order mark
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    filled = [(i, row) for i, row in enumerate(rows, 1) if any(row)]
    if len(filled) < 2:
        raise broken(path, "it has a heading and no rows" if filled else "it is empty")
    (_, heading), *filled = filled
    for i, row in filled:
        if len(row) != len(heading):
            raise broken(path, f"row {i} has {len(row)} columns, not {len(heading)}")
    return Table(heading, [row for _, row in filled], [(path, i) for i, _ in filled])


def numbered(labels: Sequence[str]) -> np.ndarray:
    """Labels as whole numbers from 0: numbers in increasing order, words in alphabetical order."""
    return np.unique(_values(labels), return_inverse=True)[1].astype(np.int64)


def _values(labels: Sequence[str]) -> np.ndarray:
    for kind, dtype in ((int, object), (float, np.float64)):  # Python's integers: float64 cannot hold 18 digits
        with contextlib.suppress(ValueError):
            return np.array([kind(label) for label in labels], dtype=dtype)
    return np.array(labels)


def owners(keys: Sequence[str]) -> np.ndarray:
    """Owners as whole numbers from 0, ordered like labels. "007" and "7" are two different owners."""
    names = sorted(set(keys))
    with contextlib.suppress(ValueError):
        names = sorted(names, key=float)
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[key] for key in keys], dtype=np.int64)


def from_csv(path: str | Path, label: str | None = None, test: str | Path | None = None, key: str | None = None) -> Dataset:
    """A comma-separated table with a heading. Numbers are standardised. Every word of a text column becomes a column.

    A column is numeric if 90 % of its non-missing training cells are numbers. Missing cells are: empty, ?, NA, nan, inf ...
    In a numeric column every cell must be a finite number; otherwise you get an error and must fill the cell in. In a text
    column an empty cell is a word like any other. A word that occurs in no training row is 0 in all columns.

    label: the column of classes (default: the last).
    test: another table with the same columns, for testing (default: a fifth of the rows is held out).
    key: the column that names the owner of a row, for the split `by_key`. It is not an input.

    >>> from_csv("patients.csv", label="outcome", key="hospital").split("by_key", clients=12)
    """
    files = [Path(z).expanduser() for z in (path, test) if z is not None]
    tables = _read_tables(files, [name for name in (label, key) if name is not None])
    heading, n = tables[0].heading, len(tables[0].rows)
    rows = [row for table in tables for row in table.rows]
    places = [place for table in tables for place in table.places]
    target = heading.index(label) if label is not None else len(heading) - 1
    owner = None if key is None else heading.index(key)
    inputs = [i for i in range(len(heading)) if i not in (target, owner)]
    if not inputs:
        raise ValueError(f"data: {files[0]} has no column of inputs, only {', '.join(heading)}; a table needs at least one")
    for row, (file, number) in zip(rows, places, strict=True):
        if not row[target]:
            raise ValueError(f"data: {file} has no {heading[target]!r} in row {number}; every row needs a class")
    y = numbered([row[target] for row in rows])
    split = held_out(np.arange(n), y) if len(tables) == 1 else {"x": np.arange(n), "test_x": np.arange(n, len(rows))}
    body = Table([heading[i] for i in inputs], [[row[i] for i in inputs] for row in rows], places)
    x, test_x = encoded(body, split["x"], split["test_x"])
    keys = None if owner is None else owners([rows[i][owner] for i in split["x"]])
    tensors = (torch.from_numpy(z) for z in (x, y[split["x"]], test_x, y[split["test_x"]]))
    x_train, y_train, x_test, y_test = tensors
    return Dataset(files[0].stem, x_train, y_train, (x_test, y_test), key=keys, classes=int(y.max()) + 1)


def _read_tables(files: Sequence[Path], names: Sequence[str]) -> list[Table]:
    """The table, and the table for testing if there is one.  names: the columns that they must have."""
    tables = [read_table(file) for file in files]
    heading, n = tables[0].heading, len(tables[0].rows)
    for name in names:
        if name not in heading:
            raise ValueError(f"data: {files[0]} has no column {name!r}{nearest(name, heading)}")
    if len(tables) == 2 and tables[1].heading != heading:
        raise broken(files[1], f"its columns are {', '.join(tables[1].heading)}, not {', '.join(heading)}")
    if len(tables) == 1 and n < 5:
        raise ValueError(f"data: {files[0]} has {n} rows; it needs at least 5 so that one can be held out, or pass test=")
    return tables
