"""Text sets by name, in every layout that their files may have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.data.texts import Texts
from tests.data import formats

pytestmark = pytest.mark.usefixtures("alone")
LEAF = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def texts(data: fk.Dataset) -> tuple[list[str], list[str]]:
    assert isinstance(data.x, Texts)
    assert data.test is not None
    return list(data.x), list(data.test[0])


REVIEWS = {
    f"{part}/{kind}/{i}_7.txt": f"{part} {kind} {i} très"
    for part in ("train", "test")
    for kind in ("pos", "neg")
    for i in range(2)
}


@pytest.mark.parametrize("form", ["folder", "archive", "jsonl.xz", "jsonl"])
@pytest.mark.usefixtures("small")
def test_imdb(tmp_path: Path, form: str) -> None:
    if form == "folder":
        formats.put(tmp_path / "aclImdb", {name: text.encode() for name, text in REVIEWS.items()})
    elif form == "archive":
        formats.archive(tmp_path / "aclImdb_v1.tar.gz", {name: text.encode() for name, text in REVIEWS.items()}, "aclImdb")
    else:
        for part in ("train", "test"):
            rows = [{"label": int("/pos/" in name), "text": text} for name, text in REVIEWS.items() if name.startswith(part)]
            formats.jsonl(tmp_path / f"imdb/{part}.{form}", rows)
    data = fk.load("imdb", tmp_path)
    train, test = texts(data)
    labels = dict(zip(train, data.y.tolist(), strict=True))
    assert labels == {f"train {kind} {i} très": int(kind == "pos") for kind in ("pos", "neg") for i in range(2)}
    assert all(text.startswith("test") for text in test)
    assert data.classes == 2


GLUE = [
    ("sst2", "SST-2", 'sentence\tlabel\nso "good\t1\nbad\t0\n', ['so "good', "bad"], [1, 0]),
    ("sst2", "sst2", "label\tsentence\n1\tgood\n", ["good"], [1]),
    ("qqp", "QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta?\tb?\t1\n", ["a?\x1eb?"], [1]),
    ("qnli", "glue/QNLI", "index\tquestion\tsentence\tlabel\n0\ta?\tb\tnot_entailment\n", ["a?\x1eb"], [1]),
]


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize(("name", "folder", "table", "expected", "labels"), GLUE, ids=[row[1] for row in GLUE])
@pytest.mark.usefixtures("small")
def test_glue(
    tmp_path: Path, name: str, folder: str, table: str, expected: list[str], labels: list[int], packing: str
) -> None:
    for part in ("train", "dev"):
        formats.packed(tmp_path / folder / f"{part}.tsv{packing}", table.replace("\n", "\r\n") if packing else table)
    data = fk.load(name, tmp_path)
    assert texts(data) == (expected, expected)
    assert data.y.tolist() == labels


@pytest.mark.usefixtures("small")
def test_newsgroups_lose_headers_signatures_and_quotations(tmp_path: Path) -> None:
    post = "From: me@here\nSubject: x\n\nYou wrote:\n> old\nNew words.\n\n--\nMe\n"
    files = {f"20news-bydate-{part}/{group}/1": post.encode("latin-1") for part in ("train", "test") for group in "ab"}
    formats.put(tmp_path, files)
    data = fk.load("20newsgroups", tmp_path)
    train, test = texts(data)
    assert data.y.tolist() == [0, 1]
    for text in (*train, *test):
        assert "New words." in text
        assert not any(word in text for word in ("here", "old", "Me"))
    for part in ("train", "test"):
        formats.jsonl(tmp_path / f"20newsgroups/{part}.jsonl", [{"label": group, "text": post} for group in "ba"])
    again = fk.load("20newsgroups", tmp_path)
    assert again.y.tolist() == [1, 0]
    assert texts(again) == (train, test)


@pytest.mark.usefixtures("small")
def test_ag_news(tmp_path: Path) -> None:
    formats.packed(tmp_path / "ag_news_csv/train.csv", '"3","Title","A ""text"", long"\n"1","B","C"\n')
    formats.packed(tmp_path / "ag_news_csv/test.csv", '"4","T","x"\n')
    data = fk.load("agnews", tmp_path)
    assert texts(data) == (['Title A "text", long', "B C"], ["T x"])
    assert data.y.tolist() == [2, 0]


def test_shakespeare_by_role(tmp_path: Path) -> None:
    speech = "To be, or not to be: that is the question.\t" * 20
    rows = [{"play": "p", "role": role, "speeches": [speech, "Ay"]} for role in "AB"]
    formats.jsonl(tmp_path / "shakespeare_by_role.jsonl.gz", [*rows, {"play": "p", "role": "C", "speeches": ["No."]}])
    data = fk.load("shakespeare", tmp_path)
    assert data.prepare is not None
    assert data.test is not None
    x, text = data.prepare(data.x), f"{speech}\nAy".replace("\t", " ")
    cut = int(0.8 * len(text))
    assert x.dtype == torch.int64
    assert len(x) == 2 * (cut - 80)
    assert "".join(LEAF[i] for i in x[5]) == text[5:85]
    assert [LEAF[i] for i in data.y[:200]] == list(text[80:280])
    assert "".join(LEAF[i] for i in data.prepare(data.test[0])[0]) == text[cut : cut + 80]
    assert data.key is not None
    assert np.bincount(data.key).tolist() == [cut - 80] * 2
    assert data.vocabulary == data.classes == 80
    assert data.split("by_key", clients=2).vocabulary == 80


def test_leaf_shakespeare(tmp_path: Path) -> None:
    for part in ("train", "test"):
        users = {"A": {"x": ["a" * 79 + "b", "c" * 80], "y": ["}", "\n"]}, "B": {"x": ["d" * 80], "y": ["e"]}}
        formats.packed(tmp_path / f"shakespeare/data/{part}/x.json", json.dumps({"user_data": users}))
    data = fk.load("shakespeare", tmp_path)
    assert [LEAF[i] for i in data.y] == ["}", "\n", "e"]
    assert LEAF[data.x[0, 79]] == "b"
    assert data.key is not None
    assert data.key.tolist() == [0, 0, 1]
