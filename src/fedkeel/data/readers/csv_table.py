"""Comma-separated tables: `from_csv`."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedkeel.data.arrays import held_out
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.file_contents import broken, contents, reading
from fedkeel.data.readers.table_columns import NUMERIC_SHARE, Table, coded, described
from fedkeel.data.schema import Column, Schema, load_schema
from fedkeel.errors import nearest, refuse

SEPARATORS = ",;\t|"  # that are recognised in the heading
# A label column of numbers is questioned if it has more different numbers than this: fractions, and whole numbers.
FEW_FRACTIONS, FEW_INTEGERS = 20, 100


def read_table(path: Path, separator: str | None = None) -> Table:
    """A table with a heading. Blanks around cells and empty rows are dropped.

    separator: between cells. By default it is the most frequent of comma, semicolon, tab and | in the heading.
    """
    if separator is not None and (not isinstance(separator, str) or len(separator) != 1):
        raise refuse("separator", separator, "one character, such as ';'")
    if not path.is_file():
        raise ValueError(f"data: there is no file {path}")
    with reading(path):
        text = contents(path).decode("utf-8-sig")  # Excel starts a file with a byte-order mark
        first = next((line for line in text.splitlines() if line.strip()), "")
        between = separator or max(SEPARATORS, key=first.count)
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), delimiter=between)]
    filled = [(i, row) for i, row in enumerate(rows, 1) if any(row)]
    if len(filled) < 2:
        raise broken(path, "it has a heading and no rows" if filled else "it is empty")
    (_, heading), *filled = filled
    for i, row in filled:
        if len(row) != len(heading):
            raise broken(path, f"row {i} has {len(row)} columns, not {len(heading)}")
    for name in heading:
        if heading.count(name) > 1:
            raise broken(path, f"its heading has {name!r} twice")
    return Table(heading, [row for _, row in filled], [(path, i) for i, _ in filled])


def class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The different labels: numbers in increasing order, words in alphabetical order. Labels such as 1 and 1.0 are one."""
    return tuple(labels[i] for i in np.unique(_values(labels), return_index=True)[1])


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


def from_csv(
    path: str | Path,
    label: str | None = None,
    test: str | Path | None = None,
    key: str | None = None,
    *,
    schema: Schema | str | Path | None = None,
    separator: str | None = None,
    missing: str = "refuse",
    regression: bool | None = None,
) -> Dataset:
    """A table with a heading. Numbers are standardised. Every word of a text column becomes a column.

    A column is numeric if 90 % of its non-missing training cells are numbers. Missing cells are: empty, ?, NA, nan, inf ...
    In a numeric column every cell must be a finite number; otherwise you get an error, unless you pass `missing`. In a text
    column an empty cell is a word like any other. A word that occurs in no training row is 0 in all columns.

    label: the column of classes (default: the last).
    test: another table with the same columns, for testing (default: a fifth of the rows is held out).
    key: the column that names the owner of a row, for the split `by_key`. It is not an input.
    schema: how another table was read: its `data.schema`, a JSON file, or the directory of a run. Then class numbers, words,
        means and deviations are those of that table, and a table that does not fit is refused.
    separator: between cells (default: comma, semicolon, tab or |, as the heading shows).
    missing: "mean" or "median" fills the missing cells of numeric columns in; "refuse" (default) names the first one.
    regression: True predicts the numbers of the label column, False takes them as classes. If the column has many different
        numbers, you must say which.

    >>> from_csv("patients.csv", label="outcome", key="hospital").split("by_key", clients=12)
    >>> from_csv("site3.csv", schema="runs/patients")
    """
    known = None if schema is None else load_schema(schema)
    if known is not None:
        _check_arguments(known, label, key, missing, regression)
        label, key = known.label, key or known.key
    files = [Path(z).expanduser() for z in (path, test) if z is not None]
    tables = [read_table(file, separator) for file in files]
    if known is not None and key == known.key and key not in tables[0].heading:
        key = None  # a site needs no owners
    _check_tables(files, tables, [name for name in (label, key) if name is not None])
    heading, n = tables[0].heading, len(tables[0].rows)
    rows = [[row[table.heading.index(name)] for name in heading] for table in tables for row in table.rows]
    whole = Table(heading, rows, [place for table in tables for place in table.places])
    label = heading[-1] if label is None else label
    inputs = [name for name in heading if name not in (label, key)]
    if not inputs:
        raise ValueError(f"data: {files[0]} has no column of inputs, only {', '.join(heading)}; a table needs at least one")
    labels = _labels(whole, label)
    if known is None:
        known = _schema_of(whole, n, len(tables), labels, inputs, label, key, missing, regression)
    else:
        _check_columns(known, inputs, files[0])
    y = _targets(whole, labels, known)
    split = (
        held_out(np.arange(n), np.arange(n)) if len(tables) == 1 else {"x": np.arange(n), "test_x": np.arange(n, len(rows))}
    )
    x = torch.from_numpy(coded(whole, known.columns, strict=schema is not None))
    keys = None if key is None else owners([rows[i][heading.index(key)] for i in split["x"]])
    train, held = (torch.from_numpy(split[part]) for part in ("x", "test_x"))
    classes = None if known.classes is None else len(known.classes)
    return Dataset(files[0].stem, x[train], y[train], (x[held], y[held]), key=keys, classes=classes, schema=known)


def _check_tables(files: Sequence[Path], tables: Sequence[Table], names: Sequence[str]) -> None:
    """names: the columns that the tables must have."""
    heading, n = tables[0].heading, len(tables[0].rows)
    for name in names:
        if name not in heading:
            raise ValueError(f"data: {files[0]} has no column {name!r}{nearest(name, heading)}")
    if len(tables) == 2 and tables[1].heading != heading:
        raise broken(files[1], f"its columns are {', '.join(tables[1].heading)}, not {', '.join(heading)}")
    if len(tables) == 1 and n < 5:
        raise ValueError(f"data: {files[0]} has {n} rows; it needs at least 5 so that one can be held out, or pass test=")


def _labels(table: Table, label: str) -> list[str]:
    """The cells of the label column, none of them empty."""
    labels = [row[table.heading.index(label)] for row in table.rows]
    for cell, (file, number) in zip(labels, table.places, strict=True):
        if not cell:
            raise ValueError(f"data: {file} has no {label!r} in row {number}; every row needs a class")
    return labels


def _schema_of(
    table: Table,
    n: int,
    tables: int,
    labels: Sequence[str],
    inputs: Sequence[str],
    label: str,
    key: str | None,
    missing: str,
    regression: bool | None,
) -> Schema:
    """The schema of a table whose first n rows are for training, one fifth of them held out if there is one table only."""
    path = table.places[0][0]
    train = held_out(np.arange(n), np.arange(n))["x"] if tables == 1 else np.arange(n)
    places = [table.heading.index(name) for name in inputs]
    body = Table(list(inputs), [[row[i] for i in places] for row in table.rows], table.places)
    names = None if regression else class_names(labels)
    if names is not None and regression is None:
        _question(path, label, names, len(labels))
    columns: tuple[Column, ...] = described(body, train, missing)
    return Schema(names, label, key, columns)


def _question(path: Path, label: str, names: Sequence[str], rows: int) -> None:
    """Raises if the labels look like amounts, or like those of one site of several."""
    numbers = [value for value in map(_value, names) if not isinstance(value, str)]
    fractions = any(isinstance(value, float) for value in numbers)
    many = len(numbers) > (FEW_FRACTIONS if fractions else max(FEW_INTEGERS, rows // 5))
    if many and len(numbers) >= NUMERIC_SHARE * len(names):
        raise ValueError(
            f"data: the column {label!r} of {path} has {len(numbers)} different numbers in {rows} rows. Do you want to "
            "predict these numbers? Then pass regression=True (--regression). Are they classes? Then pass regression=False "
            "(--no-regression). Is another column the label? Then pass label="
        )
    if len(names) == 1:
        raise ValueError(
            f"data: the column {label!r} of {path} has the value {names[0]!r} in every row; a model needs two classes at "
            "least. If this is the table of one site of several, pass schema= with the schema of all"
        )


def _check_arguments(schema: Schema, label: str | None, key: str | None, missing: str, regression: bool | None) -> None:
    """Refuses arguments that contradict the schema."""
    if not schema.columns or schema.label is None:
        raise ValueError("schema: it describes pictures, not a table")
    for name, value, theirs in (("label", label, schema.label), ("regression", regression, schema.classes is None)):
        if value is not None and value != theirs:
            raise refuse(name, value, f"{theirs!r}, as in the schema")
    if key is not None and schema.key is not None and key != schema.key:
        raise refuse("key", key, f"{schema.key!r}, as in the schema")
    if missing != "refuse":
        raise refuse("missing", missing, "left out beside schema, which says what takes the place of missing cells")


def _check_columns(schema: Schema, inputs: Sequence[str], path: Path) -> None:
    wanted = [column.name for column in schema.columns]
    for name in wanted:
        if name not in inputs:
            raise ValueError(f"data: {path} does not fit the schema: it has no column {name!r}{nearest(name, inputs)}")
    for name in inputs:
        if name not in wanted:
            raise ValueError(f"data: {path} does not fit the schema, which has no column {name!r}{nearest(name, wanted)}")


def _targets(table: Table, labels: Sequence[str], schema: Schema) -> torch.Tensor:
    """Class numbers [n], or the numbers to predict [n, 1]."""
    if schema.classes is None:
        try:
            y = np.array([float(cell) for cell in labels])
        except ValueError:
            y = np.array([np.nan])
        if not np.isfinite(y).all():
            i = next(i for i, cell in enumerate(labels) if not _is_finite(cell))
            path, row = table.places[i]
            raise ValueError(
                f"data: {path} has {labels[i]!r} in row {row} of the column {schema.label!r}, which needs finite numbers"
            )
        return torch.from_numpy(y.astype(np.float32)).unsqueeze(1)
    number: dict[object, int] = {}
    for i, name in enumerate(schema.classes):
        number |= {name: i, _value(name): i}
    for cell, (path, row) in zip(labels, table.places, strict=True):
        if cell not in number and _value(cell) not in number:
            raise ValueError(
                f"data: {path} has the class {cell!r} in row {row}, which the schema does not know; "
                f"it knows {', '.join(map(repr, schema.classes[:20]))}"
            )
    return torch.tensor([number[cell] if cell in number else number[_value(cell)] for cell in labels])


def _value(cell: str) -> object:
    """The number that a cell spells, or the cell."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(cell)
    return cell


def _is_finite(cell: str) -> bool:
    value = _value(cell)
    return not isinstance(value, str) and bool(np.isfinite(float(value)))  # type: ignore[arg-type]
