"""The columns of a table as numbers: x [n, columns] float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkeel.data.schema import Column
from fedkeel.errors import refuse

MISSING = ("", "?", "-", "na", "n/a", "#n/a", "nan", "null", "none", "inf", "-inf")  # in upper or lower case
NUMERIC_SHARE = 0.9  # of the non-missing cells of a numeric column are numbers
FILLS = ("refuse", "mean", "median")  # what to do with a missing cell of a numeric column


class Table(NamedTuple):
    heading: list[str]
    rows: list[list[str]]
    places: list[tuple[Path, int]]  # for every row: its file and its number in the file


def encoded(table: Table, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The training rows and the test rows as float32.  train, test: row numbers. See `described` and `coded`."""
    x = coded(table, described(table, train))
    return x[train], x[test]


def described(table: Table, train: np.ndarray, missing: str = "refuse") -> tuple[Column, ...]:
    """The columns of a table. The training rows decide whether a column is numeric (see `_numeric`).

    train: row numbers.  missing: "mean" or "median" of the training cells takes the place of a missing cell.
    """
    if missing not in FILLS:
        raise refuse("missing", missing, ", ".join(map(repr, FILLS)))
    columns = []
    for name, column in zip(table.heading, zip(*table.rows, strict=True), strict=True):
        cells = np.array(column)[train]
        if not _numeric(cells):
            columns.append(Column(name, words=tuple(np.unique(cells).tolist())))
            continue
        fill = None
        if missing != "refuse":
            known = _numbers(cells[~_missing(cells)])
            fill = float(np.nanmean(known) if missing == "mean" else np.nanmedian(known))
        x = _finite(table, Column(name, 0.0, 1.0, fill=fill), np.array(column), train)
        columns.append(Column(name, float(x.mean()), float(x.std() or 1.0), fill=fill))
    return tuple(columns)


def coded(table: Table, columns: Sequence[Column], strict: bool = False) -> np.ndarray:
    """All rows of a table as these columns say, [n, ...] float32.

    Every cell of a numeric column must be a finite number, or missing if the column has a number for missing cells. A text
    column becomes one column of 0 and 1 for each of its words. An empty cell is a word.

    strict: an unknown word is an error. Otherwise it is 0 in all columns.
    """
    cells = dict(zip(table.heading, zip(*table.rows, strict=True), strict=True))
    found = []
    for column in columns:
        mine = np.array(cells[column.name])
        if column.words is None:
            x = _finite(table, column, mine, np.arange(len(mine)))
            found.append((x - float(column.mean or 0)) / float(column.std or 1))
            continue
        found += [mine == word for word in column.words]
        unknown = ~np.isin(mine, column.words)
        if strict and unknown.any():
            path, row = table.places[int(np.argmax(unknown))]
            word = str(mine[unknown][0])
            known = ", ".join(map(repr, column.words[:10])) + (", ..." if len(column.words) > 10 else "")
            raise ValueError(
                f"data: {path} has {word!r} in row {row} of the column {column.name!r}, a word that the schema does not "
                f"know; it knows {known}"
            )
    return np.stack(found, axis=1).astype(np.float32)


def _finite(table: Table, column: Column, cells: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """These rows of a numeric column as finite numbers."""
    mine = cells[rows]
    x = _numbers(mine)
    if column.fill is not None:
        x = np.where(_missing(mine), column.fill, x)
    if not np.isfinite(x).all():
        i = int(rows[int(np.argmin(np.isfinite(x)))])
        path, row = table.places[i]
        raise ValueError(
            f"data: {path} has {str(cells[i])!r} in row {row} of the column {column.name!r}, where it must be a finite "
            "number as in the other rows; fill it in, remove the row, pass missing='mean' (--missing mean) if it is "
            "missing, or write the numbers as words (n1, n2) if they are names"
        )
    return x


def _missing(cells: np.ndarray) -> np.ndarray:
    return np.isin(np.char.lower(cells), MISSING)


def _numeric(cells: np.ndarray) -> bool:
    """A column is numeric if 90 % of its non-missing cells are finite numbers.

    So a single typing error in a column of numbers is reported. Otherwise it would turn every number into a word.
    """
    filled = cells[~_missing(cells)]
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
