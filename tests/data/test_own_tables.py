"""Options of own tables: separators, missing cells, and labels that look like amounts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedkeel as fk


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_separators_are_recognised(tmp_path: Path, separator: str) -> None:
    rows = [f"{i}{separator}{'ab'[i % 2]}" for i in range(10)]
    data = fk.from_csv(write(tmp_path / "a.csv", [f"age{separator}state", *rows]))
    assert data.schema is not None
    assert data.schema.columns[0].name == "age"
    assert data.classes == 2


def test_a_separator_may_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["a,b:state", *(f"{i}:{'xy'[i % 2]}" for i in range(10))])
    data = fk.from_csv(path, separator=":")
    assert data.schema is not None
    assert data.schema.columns[0].name == "a,b"
    with pytest.raises(ValueError, match=r"separator = '::' is not allowed; it must be one character"):
        fk.from_csv(path, separator="::")


@pytest.mark.parametrize(("missing", "filled"), [("mean", 4.0), ("median", 2.0)])
def test_missing_cells_can_be_filled_in(tmp_path: Path, missing: str, filled: float) -> None:
    train = write(tmp_path / "a.csv", ["age,state", "1,0", "2,1", "9,0", ",1"])
    test = write(tmp_path / "b.csv", ["age,state", f"{filled},0", "NA,1"])
    with pytest.raises(ValueError, match=r"has '' in row 5 of the column 'age'.*missing='mean'"):
        fk.from_csv(train, test=test)
    data = fk.from_csv(train, test=test, missing=missing)
    assert data.test is not None
    assert data.test[0][0] == data.test[0][1], "the missing cell is the number that the training cells say"
    site = write(tmp_path / "c.csv", ["age,state", *["?,1"] * 5])
    assert torch.equal(fk.from_csv(site, schema=data.schema).x[0], data.test[0][0])
    with pytest.raises(ValueError, match="missing = 'zero' is not allowed"):
        fk.from_csv(train, test=test, missing="zero")
    with pytest.raises(ValueError, match=r"has 'x1' in row 3"):
        fk.from_csv(train, test=write(tmp_path / "d.csv", ["age,state", "1,0", "x1,1"]), missing=missing)


def test_amounts_are_questioned(tmp_path: Path) -> None:
    rows = [f"{i % 7},{i * 1.37 + 0.01:.2f}" for i in range(377)]
    path = write(tmp_path / "a.csv", ["age,cost", *rows, "3,NA"])
    with pytest.raises(ValueError, match=r"has 377 different numbers.*regression=True.*regression=False"):
        fk.from_csv(path)
    path = write(tmp_path / "a.csv", ["age,cost", *rows])
    data = fk.from_csv(path, regression=True)
    assert (data.y.shape, data.y.dtype, data.classes) == ((302, 1), torch.float32, None)
    assert fk.from_csv(path, regression=False).classes == 377
    fed = data.split("iid", clients=3)
    assert fk.model("mlp", fed)(fed[0].x).shape == fed[0].y.shape
    with pytest.raises(ValueError, match=r"has 'NA' in row 379 of the column 'cost', which needs finite numbers"):
        fk.from_csv(write(tmp_path / "a.csv", ["age,cost", *rows, "3,NA"]), regression=True)


def test_class_numbers_are_not_questioned(tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 40}" for i in range(400)]
    assert fk.from_csv(write(tmp_path / "a.csv", ["age,kind", *rows])).classes == 40


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*no\.csv"):
        fk.from_csv(tmp_path / "no.csv")
