"""Readers of tables: numbers are standardised by the training rows, words become one column each; x [n, columns] float32."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkeel.data.readers.files import Arrays, broken, contents, lines, numpy_archive, reading
from fedkeel.data.readers.images import held_out

Rows = list[list[str]]

MISSING = ("", "?", "-", "na", "n/a", "#n/a", "nan", "null", "none", "inf", "-inf")  # in capitals or not


class Table(NamedTuple):
    heading: list[str]
    rows: Rows
    places: list[tuple[Path, int]]  # of every row: its file, and its number there


def encoded(table: Table, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns of text -> float32; train, test: the numbers of these rows.

    The training rows decide whether a column is numeric (see `_numeric`); then every cell of it must be a finite number, in
    the test rows too. Any other column becomes one for each of its words, an empty cell being a word; one that training has
    not is all 0.
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
        "other rows; fill it in, leave the row out, or write the numbers as words (n1, n2) if they are names"
    )


def _numeric(cells: np.ndarray) -> bool:
    """Whether nine in ten of the cells that are not missing are finite numbers.

    So one slip in a column of numbers is found, instead of every number becoming a word.
    """
    said = cells[~np.isin(np.char.lower(cells), MISSING)]
    return len(said) > 0 and float(np.isfinite(_numbers(said)).mean()) >= 0.9


def _numbers(cells: np.ndarray) -> np.ndarray:
    """Cells as numbers, NaN where they are none."""
    try:
        return cells.astype(np.float64)
    except ValueError:
        return np.array([_number(cell) for cell in cells])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def table_of(path: Path) -> Table:
    """A comma-separated file with a heading: its cells without the blanks around them, and without empty rows."""
    with reading(path):
        text = contents(path).decode("utf-8-sig")  # Excel puts a mark before the heading
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    found = [(i, row) for i, row in enumerate(rows, 1) if any(row)]
    if len(found) < 2:
        raise broken(path, "it has a heading and no rows" if found else "it is empty")
    (_, heading), *found = found
    for i, row in found:
        if len(row) != len(heading):
            raise broken(path, f"row {i} has {len(row)} columns, not {len(heading)}")
    return Table(heading, [row for _, row in found], [(path, i) for i, _ in found])


def adult(train: Path, test: Path) -> Arrays:
    """adult.data, adult.test: 14 columns and <=50K or >50K; the second file begins with a comment, its labels end in '.'."""
    arrays: Arrays = {}
    table = Table([str(i) for i in range(1, 15)], [], [])
    for part, path in (("", train), ("test_", test)):
        with reading(path):
            plain = "\n".join(line for line in lines(path) if not line.startswith("|"))
            rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(plain)) if row]
            bad = [row for row in rows if len(row) != 15 or row[14].rstrip(".") not in ("<=50K", ">50K")]
            if bad:
                raise ValueError(f"the row {', '.join(bad[0])!r} has not 14 values and a label")
        table.rows.extend(row[:14] for row in rows)
        table.places.extend((path, i) for i in range(1, len(rows) + 1))
        arrays[f"{part}y"] = np.array([row[14].startswith(">") for row in rows], dtype=np.int64)
    n = len(arrays["y"])
    arrays["x"], arrays["test_x"] = encoded(table, np.arange(n), np.arange(n, len(table.rows)))
    return arrays


def _standardised(arrays: Arrays, columns: int) -> Arrays:
    """The first so many columns to mean 0 and deviation 1 over the training rows."""
    x = arrays["x"][:, :columns]
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    for part in ("x", "test_x"):
        arrays[part][:, :columns] = (arrays[part][:, :columns] - mean) / np.where(deviation > 0, deviation, 1)
    return arrays


def covertype_arrays(path: Path) -> Arrays:
    """An .npz with numeric [n, 10], wilderness and soil as numbers, label 1-7."""
    with reading(path):
        z = numpy_archive(path)
        x = np.zeros((len(z["label"]), 54), dtype=np.float32)
        x[:, :10] = z["numeric"]
        rows = np.arange(len(x))
        x[rows, 10 + z["wilderness"].astype(np.int64)] = 1
        x[rows, 14 + z["soil"].astype(np.int64)] = 1
        return _standardised(held_out(x, z["label"].astype(np.int64) - 1), 10)


def covertype_csv(path: Path) -> Arrays:
    """UCI's covtype.data: 10 numbers, 4 + 40 columns of 0 and 1, class 1-7."""
    with reading(path):
        z = np.loadtxt(io.BytesIO(contents(path)), delimiter=",", dtype=np.float32, ndmin=2)
        if z.shape[1] != 55:
            raise ValueError(f"it has {z.shape[1]} columns, not 55")
        return _standardised(held_out(z[:, :54], z[:, 54].astype(np.int64) - 1), 10)


def numbered(labels: Sequence[str]) -> np.ndarray:
    """Labels as whole numbers from 0, in the order of the numbers or words they are."""
    return np.unique(_values(labels), return_inverse=True)[1].astype(np.int64)


def _values(labels: Sequence[str]) -> np.ndarray:
    for kind, dtype in ((int, object), (float, np.float64)):  # Python's integers: those of 18 digits are no float64
        with contextlib.suppress(ValueError):
            return np.array([kind(label) for label in labels], dtype=dtype)
    return np.array(labels)


def owners(keys: Sequence[str]) -> np.ndarray:
    """Keys as whole numbers from 0, in the order of the numbers or words they are; "007" and "7" are two owners."""
    names = sorted(set(keys))
    with contextlib.suppress(ValueError):
        names = sorted(names, key=float)
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[key] for key in keys], dtype=np.int64)
