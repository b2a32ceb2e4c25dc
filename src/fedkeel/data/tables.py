"""Readers of tables: numbers are standardised by the training rows, words become one column each; x [n, columns] float32."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedkeel.data.files import Arrays, broken, contents, lines, numpy_archive, reading
from fedkeel.data.images import held_out

Rows = list[list[str]]


def encoded(train: Rows, test: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Columns of text -> float32. A column is numeric if every training value is; a word that training has not is all 0."""
    columns = []
    for a, b in zip(zip(*train, strict=True), zip(*test, strict=True), strict=True):
        try:
            x, z = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
            deviation = x.std() or 1.0
            columns.append(((x - x.mean()) / deviation, (z - x.mean()) / deviation))
        except ValueError:
            x, z = np.array(a), np.array(b)
            columns += [(x == word, z == word) for word in np.unique(x)]
    return tuple(np.stack(z, axis=1).astype(np.float32) for z in zip(*columns, strict=True))  # type: ignore[return-value]


def rows_of(path: Path, width: int | None = None) -> Rows:
    """The cells of a comma-separated file, without blanks around them and without empty lines."""
    with reading(path):
        found = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(contents(path).decode()))]
    found = [row for row in found if any(row)]
    width = width or len(found[0])
    for i, row in enumerate(found, 1):
        if len(row) != width:
            raise broken(path, f"row {i} has {len(row)} columns, not {width}")
    return found


def adult(train: Path, test: Path) -> Arrays:
    """adult.data, adult.test: 14 columns and <=50K or >50K; the second file begins with a comment, its labels end in '.'."""
    arrays: Arrays = {}
    parts: list[Rows] = []
    for part, path in (("", train), ("test_", test)):
        with reading(path):
            plain = "\n".join(line for line in lines(path) if not line.startswith("|"))
            rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(plain)) if row]
            bad = [row for row in rows if len(row) != 15 or row[14].rstrip(".") not in ("<=50K", ">50K")]
            if bad:
                raise ValueError(f"the row {', '.join(bad[0])!r} has not 14 values and a label")
        parts.append([row[:14] for row in rows])
        arrays[f"{part}y"] = np.array([row[14].startswith(">") for row in rows], dtype=np.int64)
    arrays["x"], arrays["test_x"] = encoded(*parts)
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


def numbered(names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Labels as whole numbers from 0, in the order of the numbers or words they are."""
    try:
        values: np.ndarray = np.array(names, dtype=np.float64)
    except ValueError:
        values = np.array(names)
    words, y = np.unique(values, return_inverse=True)
    return y.astype(np.int64), [str(word) for word in words]
