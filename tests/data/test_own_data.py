"""A user's own pictures, tables and hub data sets, and the picture of a split."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from fedkeel.data.label_plot import bubbles_svg, bubbles_text, label_counts, write_bubbles
from fedkeel.data.load import load
from fedkeel.data.own_files import from_csv, from_folder
from fedkeel.data.readers.hub import from_hub
from tests.data import formats


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)


# Folders of pictures --------------------------------------------------------------------------------------------------


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    made = {f"{part}/{kind}/{i}.png": formats.picture(8) for part in ("train", "val") for kind in "ba" for i in range(2)}
    formats.put(tmp_path / "pets", {name: data for name, (data, _) in made.items()} | {"train/a/notes.txt": b"no picture"})
    data = from_folder(tmp_path / "pets")
    assert data.y.tolist() == [0, 0, 1, 1]
    assert np.array_equal(data.x[0].numpy().transpose(1, 2, 0), made["train/a/0.png"][1])
    assert data.test is not None
    assert np.array_equal(data.test[0][3].numpy().transpose(1, 2, 0), made["val/b/1.png"][1])
    assert data.prepare is not None
    prepared = data.prepare(data.x)
    assert prepared.mean((0, 2, 3)).abs().max() < 1e-3
    assert (prepared.std((0, 2, 3)) - 1).abs().max() < 0.01
    assert from_folder(tmp_path / "pets", size=4).x.shape == (4, 3, 4, 4)


def test_a_folder_without_a_test_part_holds_a_fifth_out(tmp_path: Path) -> None:
    formats.put(tmp_path / "pets", {f"{kind}/{i}.png": formats.picture(8)[0] for kind in "ab" for i in range(5)})
    data = from_folder(tmp_path / "pets")
    assert data.test is not None
    assert (len(data.y), len(data.test[1])) == (8, 2)


def test_classes_that_only_the_test_part_has_are_named(tmp_path: Path) -> None:
    """Their pictures were once left out. A folder that holds no pictures is no class."""
    made = {f"{part}/{kind}/1.png": formats.picture(8)[0] for part in ("train", "test") for kind in "ab"}
    formats.put(tmp_path / "pets", made | {"test/notes/readme.txt": b"no picture"})
    assert from_folder(tmp_path / "pets").classes == 2
    formats.put(tmp_path / "pets", {f"test/{kind}/1.png": formats.picture(8)[0] for kind in "dc"})
    with pytest.raises(ValueError, match=r"^data: .*test has classes that .*train has not: c, d; .* be in train$"):
        from_folder(tmp_path / "pets")


def test_pictures_that_do_not_fit_are_named(tmp_path: Path) -> None:
    formats.put(tmp_path / "pets", {"a/1.png": formats.picture(8)[0], "a/2.png": formats.picture(9)[0]})
    with pytest.raises(ValueError, match=r"2\.png cannot be read.* it is 9 x 9, others 8 x 8"):
        from_folder(tmp_path / "pets")
    formats.put(tmp_path / "pets", {"a/2.png": formats.picture(8)[0][:100]})
    with pytest.raises(ValueError, match=r"2\.png cannot be read"):
        from_folder(tmp_path / "pets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no folders of pictures"):
        from_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match="there is no folder"):
        from_folder(tmp_path / "nowhere")


# Tables ---------------------------------------------------------------------------------------------------------------

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


def test_tables_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ROWS)
    with pytest.raises(ValueError, match=r"a\.csv has no column 'stat'.*state"):
        from_csv(path, label="stat")
    with pytest.raises(ValueError, match=r"b\.csv cannot be read.*row 2 has 2 columns, not 4"):
        from_csv(table(tmp_path / "b.csv", ["1,2"]))
    with pytest.raises(ValueError, match=r"c\.csv cannot be read.*its columns are"):
        from_csv(path, test=table(tmp_path / "c.csv", ROWS, heading="a,b,c,d"))


OWNERS = [
    ([str(10**17 + i) for i in (3, 0, 2, 1)], [3, 0, 2, 1]),  # the same as float64
    (["10", "7", "007", "9"], [3, 1, 0, 2]),
    (["10.0", "9.0", "2.0", "1.0"], [3, 2, 1, 0]),
    (["10", "9", "b", "a"], [0, 1, 3, 2]),
]


@pytest.mark.parametrize(("names", "numbers"), OWNERS, ids=str)
def test_owners_are_as_they_are_written_in_the_order_of_numbers(
    tmp_path: Path, names: list[str], numbers: list[int]
) -> None:
    rows = [f"c{i % 4},{i % 2},{names[i % 4]}" for i in range(40)]
    data = from_csv(table(tmp_path / "a.csv", rows, "copy,state,who"), label="state", key="who")
    assert data.key is not None
    assert data.key.tolist() == [numbers[i] for i in data.x.argmax(1).tolist()]  # c0-c3, the same as a word


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
def test_a_cell_that_is_no_number_is_named(tmp_path: Path, cell: str, row: int) -> None:
    """Such a cell once made its column NaN, or each of its numbers a word."""
    rows = [f"{i},{i % 2}" for i in range(30)]
    rows[row] = f"{cell},1"
    rows.insert(0, "")  # counts as a row, like in a spreadsheet
    message = rf"^data: .*a\.csv has '{re.escape(cell)}' in row {row + 3} of the column 'age', .* finite number"
    with pytest.raises(ValueError, match=message) as error:
        from_csv(table(tmp_path / "a.csv", rows, "age,state"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cell", [*NOT_NUMBERS, "K"])
def test_the_training_rows_say_what_is_a_number(tmp_path: Path, cell: str) -> None:
    one = table(tmp_path / "a.csv", ["1,0", "2,1"], "age,state")
    with pytest.raises(ValueError, match=rf"b\.csv has '{re.escape(cell)}' in row 3 of the column 'age'"):
        from_csv(one, test=table(tmp_path / "b.csv", ["1,0", f"{cell},1"], "age,state"))


def test_words_may_be_missing(tmp_path: Path) -> None:
    """In a column of words an empty cell is a word, and so is a number; a column that says nothing is one word."""
    words = ["red", "", "?", "nan", "7"]
    one = table(tmp_path / "a.csv", [f"{word},,{i % 2}" for i, word in enumerate(words)], "colour,nothing,state")
    data = from_csv(one, test=table(tmp_path / "b.csv", ["blue,,0", ",3,1"], "colour,nothing,state"))
    assert data.x.tolist() == [[*(float(word == z) for z in sorted(words)), 1.0] for word in words]
    assert data.test is not None
    assert data.test[0].tolist() == [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]


def test_many_missing_numbers_are_still_numbers(tmp_path: Path) -> None:
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
    ("age,state\n1,0\n2,1\n", r"has 2 rows; it must have 5, .* or give test="),
    ("state\n1\n0\n1\n0\n1\n", r"has no column of inputs, only state; it must have at least one"),
    ("age,state\n1,0\n2,1\n3,\n4,1\n5,0\n", r"has no 'state' in row 4; every row must have its class"),
]


@pytest.mark.parametrize(("text", "message"), SHORT, ids=[message for _, message in SHORT])
def test_tables_that_are_too_little_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"^data: .*a\.csv {message}") as error:
        from_csv(tmp_path / "a.csv")
    assert "\n" not in str(error.value)


# The hub --------------------------------------------------------------------------------------------------------------


def hub_folder(path: Path) -> Path:
    """A data set that `datasets` reads from a folder."""
    for part, n in (("train", 10), ("test", 4)):
        formats.jsonl(
            path / f"{part}.jsonl", [{"text": f"{part} {i}", "label": i % 2, "user": f"u{i // 2}"} for i in range(n)]
        )
    return path


class Part:
    """A split as `datasets` hands it out, as far as it is used."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        return self.rows[key] if isinstance(key, int) else [row[key] for row in self.rows]


@pytest.fixture(params=["stub", "datasets"])
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a data set with texts, from a stand-in or from the package itself."""
    if request.param == "datasets":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
        datasets.disable_progress_bars()
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
        return str(hub_folder(tmp_path / "posts"))
    rows = {
        part: Part([{"text": f"{part} {i}", "label": i % 2, "user": f"u{i // 2}"} for i in range(n)])
        for part, n in (("train", 10), ("test", 4))
    }
    stub = ModuleType("datasets")
    stub.load_dataset = lambda name, config: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    return "somebody/posts"


@pytest.mark.filterwarnings("ignore")  # of pandas and others that `datasets` brings
def test_texts_of_the_hub(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = from_hub(hub, key="user")
    assert list(data.x) == [f"train {i}" for i in range(10)]
    assert data.y.tolist() == [0, 1] * 5
    assert data.test is not None
    assert list(data.test[0]) == [f"test {i}" for i in range(4)]
    assert data.key is not None
    assert data.key.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    held = from_hub(hub, test=None, x=["user", "text"])
    assert held.test is not None
    assert (len(held.x), len(held.test[0])) == (8, 2)
    assert all(text.startswith("u") and "\x1etrain " in text for text in held.x)
    with pytest.raises(ValueError, match=r"has no column 'lable'.*label"):
        from_hub(hub, y="lable")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(from_hub(hub, key="user").x) == list(data.x)  # from the cache


def test_pictures_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = formats.RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    part = Part([{"img": Image.fromarray(z), "fine_label": i} for i, z in enumerate(pixels)])
    stub = ModuleType("datasets")
    stub.load_dataset = lambda name, config: {"train": part, "test": part}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    data = load("cifar100")
    assert data.name == "cifar100"
    assert np.array_equal(data.x.numpy().transpose(0, 2, 3, 1), pixels)
    assert data.classes == 100


def test_a_hub_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, config: str | None) -> None:
        raise ConnectionError("no network")

    stub = ModuleType("datasets")
    stub.load_dataset = fails  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    with pytest.raises(ValueError, match=r"put cifar-100-python\.tar\.gz.*the hub has not given .*no network"):
        load("cifar100")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'fedkeel\[hub\]'"):
        from_hub("x/y")


# The picture of a split -----------------------------------------------------------------------------------------------

COUNTS = np.array([[4, 0, 1], [0, 16, 0]])


def test_bubbles_have_areas_in_proportion() -> None:
    root = ElementTree.fromstring(bubbles_svg(COUNTS, "a < b"))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    radii = {circle[0].text: float(circle.attrib["r"]) for circle in circles}
    assert set(radii) == {"client 0, class 0: 4", "client 0, class 2: 1", "client 1, class 1: 16"}
    assert radii["client 1, class 1: 16"] == pytest.approx(2 * radii["client 0, class 0: 4"], abs=0.02)
    assert radii["client 0, class 0: 4"] == pytest.approx(2 * radii["client 0, class 2: 1"], abs=0.02)


def test_bubbles_in_files_and_characters(tmp_path: Path) -> None:
    for name in ("a.svg", "b/c.html"):
        write_bubbles(COUNTS, tmp_path / name, "split")
        assert "<circle" in (tmp_path / name).read_text()
    with pytest.raises(ValueError, match=r"plot = '.*d\.gif' is not allowed; it must end in \.svg, \.html or \.png"):
        write_bubbles(COUNTS, tmp_path / "d.gif")
    lines = bubbles_text(COUNTS, 80).splitlines()
    assert [line[7:] for line in lines[:3]] == ["∙", " ⬤", "•"]
    assert "drawn are 72 of 1,000 clients and 24 of 50 classes" in bubbles_text(np.ones((1000, 50), dtype=int), 80)


def test_bubbles_as_png(tmp_path: Path) -> None:
    write_bubbles(COUNTS, tmp_path / "a.png", "split")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] >= 320
        assert len(np.unique(np.asarray(picture.convert("RGB")))) > 2


def test_label_counts() -> None:
    fed = load("digits").split("dirichlet_per_class", clients=7, concentration=0.5)
    expected = [np.bincount(fed[i].y.numpy(), minlength=10).tolist() for i in range(7)]
    assert label_counts(fed, 10).tolist() == expected
    assert torch.equal(torch.from_numpy(label_counts(fed, 10).sum(1)), torch.from_numpy(fed.sizes))
