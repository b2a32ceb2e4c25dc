"""Tables of the UCI repository: Adult and Covertype. They become x [n, columns] float32."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from fedkeel.data.arrays import Arrays, held_out
from fedkeel.data.readers.file_contents import contents, lines, numpy_archive, reading
from fedkeel.data.readers.table_columns import Table, encoded


def adult(train: Path, test: Path) -> Arrays:
    """adult.data and adult.test: 14 columns and a label, <=50K or >50K. Labels of the second file end in '.'."""
    arrays: Arrays = {}
    table = Table([str(i) for i in range(1, 15)], [], [])
    for part, path in (("", train), ("test_", test)):
        with reading(path):
            plain = "\n".join(line for line in lines(path) if not line.startswith("|"))
            rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(plain)) if row]
            bad = [row for row in rows if len(row) != 15 or row[14].rstrip(".") not in ("<=50K", ">50K")]
            if bad:
                raise ValueError(f"the row {', '.join(bad[0])!r} does not have 14 values and a label")
        table.rows.extend(row[:14] for row in rows)
        table.places.extend((path, i) for i in range(1, len(rows) + 1))
        arrays[f"{part}y"] = np.array([row[14].startswith(">") for row in rows], dtype=np.int64)
    n = len(arrays["y"])
    arrays["x"], arrays["test_x"] = encoded(table, np.arange(n), np.arange(n, len(table.rows)))
    return arrays


def _standardised(arrays: Arrays, columns: int) -> Arrays:
    """Scales the first `columns` columns to mean 0 and deviation 1 over the training rows."""
    x = arrays["x"][:, :columns]
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    for part in ("x", "test_x"):
        arrays[part][:, :columns] = (arrays[part][:, :columns] - mean) / np.where(deviation > 0, deviation, 1)
    return arrays


def covertype_npz(path: Path) -> Arrays:
    """An .npz file with numeric [n, 10], wilderness and soil as numbers, and label (1 to 7)."""
    with reading(path):
        z = numpy_archive(path)
        x = np.zeros((len(z["label"]), 54), dtype=np.float32)
        x[:, :10] = z["numeric"]
        rows = np.arange(len(x))
        x[rows, 10 + z["wilderness"].astype(np.int64)] = 1
        x[rows, 14 + z["soil"].astype(np.int64)] = 1
        return _standardised(held_out(x, z["label"].astype(np.int64) - 1), 10)


def covertype_csv(path: Path) -> Arrays:
    """covtype.data: 10 numbers, 4 + 40 columns of 0 and 1, and the class (1 to 7)."""
    with reading(path):
        z = np.loadtxt(io.BytesIO(contents(path)), delimiter=",", dtype=np.float32, ndmin=2)
        if z.shape[1] != 55:
            raise ValueError(f"it has {z.shape[1]} columns, not 55")
        return _standardised(held_out(z[:, :54], z[:, 54].astype(np.int64) - 1), 10)
