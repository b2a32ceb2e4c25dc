"""Comma-separated tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedkeel.data.readers.csv_table import from_csv

ROWS = [f"{i},{'xyz'[i % 3]},{'sick' if i % 2 else 'fit'},h{i // 5}" for i in range(20)]


def table(path: Path, rows: list[str], heading: str = "age,blood,state,hospital") -> Path:
    path.write_text("\n".join([heading, *rows]) + "\n")
    return path


def test_a_table(tmp_path: Path) -> None:
    data = from_csv(table(tmp_path / "patients.csv", ROWS), label="state", key="hospital")
    assert data.test is not None
    assert data.key is not None
    assert data.x.shape == (16, 4)  # age, and three kinds of blood
    assert (data.x[:, 0].mean().abs() < 1e-6, data.x[:, 1:].sum(1).tolist()) == (True, [1] * 16)
    assert len(data.test[1]) == 4
    age = sorted(set(data.x[:, 0].tolist()))
    assert len(age) == 16
    assert data.classes == 2
    assert len(data.split("by_key", clients=len(set(data.key.tolist())))) == len(set(data.key.tolist()))


def test_two_tables(tmp_path: Path) -> None:
    one, two = table(tmp_path / "a.csv", ROWS[:15]), table(tmp_path / "b.csv", ROWS[15:])
    data = from_csv(one, label="state", test=two)
    assert data.test is not None
    assert data.y.tolist() == [i % 2 for i in range(15)]  # fit, sick
    assert data.test[1].tolist() == [i % 2 for i in range(15, 20)]


def test_errors_name_wrong_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ROWS)
    with pytest.raises(ValueError, match=r"a\.csv has no column 'stat'.*state"):
        from_csv(path, label="stat")
    with pytest.raises(ValueError, match=r"b\.csv cannot be read.*row 2 has 2 columns, not 4"):
        from_csv(table(tmp_path / "b.csv", ["1,2"]))
    with pytest.raises(ValueError, match=r"c\.csv cannot be read.*its columns are"):
        from_csv(path, test=table(tmp_path / "c.csv", ROWS, heading="a,b,c,d"))


OWNERS = [
    ([str(10**17 + i) for i in (3, 0, 2, 1)], [3, 0, 2, 1]),  # these are equal as float64
    (["10", "7", "007", "9"], [3, 1, 0, 2]),
    (["10.0", "9.0", "2.0", "1.0"], [3, 2, 1, 0]),
    (["10", "9", "b", "a"], [0, 1, 3, 2]),
]


@pytest.mark.parametrize(("names", "numbers"), OWNERS, ids=str)
def test_owners_are_texts_in_numeric_order(tmp_path: Path, names: list[str], numbers: list[int]) -> None:
    rows = [f"c{i % 4},{i % 2},{names[i % 4]}" for i in range(40)]
    data = from_csv(table(tmp_path / "a.csv", rows, "copy,state,who"), label="state", key="who")
    assert data.key is not None
    assert data.key.tolist() == [numbers[i] for i in data.x.argmax(1).tolist()]  # c0 to c3; as a word they are the same


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([str(10**17 + i) for i in (1, 0, 2)], [1, 0, 2]),
        ([str(10**30), "-1", "7"], [2, 0, 1]),
        (["10", "9", "-1"], [2, 1, 0]),
        (["1.5", "10", "2"], [0, 2, 1]),
        (["b", "10", "9"], [2, 0, 1]),
    ],
    ids=str,
)
def test_labels_are_numbered_in_their_order(tmp_path: Path, labels: list[str], numbers: list[int]) -> None:
    one = table(tmp_path / "a.csv", [f"{i},{labels[i % 3]}" for i in range(6)], "age,state")
    data = from_csv(one, test=one)
    assert data.y.tolist() == numbers * 2
    assert data.classes == 3


NOT_NUMBERS = ["", "?", "NA", "nan", "NaN", "inf", "-inf", "None", "12O"]


@pytest.mark.parametrize("cell", NOT_NUMBERS)
@pytest.mark.parametrize("row", [1, 21])  # a row of the training part, and one of the fifth that is held out
def test_the_error_names_a_cell_that_is_not_a_number(tmp_path: Path, cell: str, row: int) -> None:
    """Otherwise the column would become NaN, or each of its numbers a word."""
    rows = [f"{i},{i % 2}" for i in range(30)]
    rows[row] = f"{cell},1"
    rows.insert(0, "")  # an empty row counts, as in a spreadsheet
    message = rf"^data: .*a\.csv has '{re.escape(cell)}' in row {row + 3} of the column 'age', .* finite number"
    with pytest.raises(ValueError, match=message) as error:
        from_csv(table(tmp_path / "a.csv", rows, "age,state"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cell", [*NOT_NUMBERS, "K"])
def test_training_rows_decide_which_columns_are_numeric(tmp_path: Path, cell: str) -> None:
    one = table(tmp_path / "a.csv", ["1,0", "2,1"], "age,state")
    with pytest.raises(ValueError, match=rf"b\.csv has '{re.escape(cell)}' in row 3 of the column 'age'"):
        from_csv(one, test=table(tmp_path / "b.csv", ["1,0", f"{cell},1"], "age,state"))


def test_text_cells_may_be_missing(tmp_path: Path) -> None:
    """In a text column an empty cell is a word, and so is a number. A column with only empty cells has one word."""
    words = ["red", "", "?", "nan", "7"]
    one = table(tmp_path / "a.csv", [f"{word},,{i % 2}" for i, word in enumerate(words)], "colour,nothing,state")
    data = from_csv(one, test=table(tmp_path / "b.csv", ["blue,,0", ",3,1"], "colour,nothing,state"))
    assert data.x.tolist() == [[*(float(word == z) for z in sorted(words)), 1.0] for word in words]
    assert data.test is not None
    assert data.test[0].tolist() == [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]


def test_a_numeric_column_may_have_many_missing_cells(tmp_path: Path) -> None:
    rows = [f"{i if i % 10 == 0 else ''},{i % 2}" for i in range(50)]
    with pytest.raises(ValueError, match=r"has '' in row 3 of the column 'age'"):
        from_csv(table(tmp_path / "a.csv", rows, "age,state"))


def test_tables_as_excel_writes_them(tmp_path: Path) -> None:
    text = "\r\n".join(["state,age", *(f"{i % 2},{i}" for i in range(10))])
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8-sig"))
    assert from_csv(tmp_path / "a.csv", label="state").x.shape == (8, 1)


SHORT = [
    ("", r"cannot be read.* it is empty"),
    ("\n\n", r"cannot be read.* it is empty"),
    ("age,state\n", r"cannot be read.* it has a heading and no rows"),
    ("age,state\n1,0\n2,1\n", r"has 2 rows; it needs at least 5 .* or pass test="),
    ("state\n1\n0\n1\n0\n1\n", r"has no column of inputs, only state; a table needs at least one"),
    ("age,state\n1,0\n2,1\n3,\n4,1\n5,0\n", r"has no 'state' in row 4; every row needs a class"),
]


@pytest.mark.parametrize(("text", "message"), SHORT, ids=[message for _, message in SHORT])
def test_errors_name_tables_that_are_too_small(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"^data: .*a\.csv {message}") as error:
        from_csv(tmp_path / "a.csv")
    assert "\n" not in str(error.value)
