"""Data sets by name, in every format that they are looked for: read right, damage noticed, what is missing said."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedkeel as fk
from fedkeel.data import load as sources
from fedkeel.data.catalogue import CATALOGUE, CIFAR10_MD5, CIFAR100_MD5
from fedkeel.data.source import Form
from fedkeel.data.texts import Texts
from tests.data import formats

LEAF = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data directory, no hub, a cache of its own."""
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)


def unchecked(form: Form) -> Form:
    """The form without the counts and checksums of the published files."""
    read: Any = form.read
    if isinstance(read, functools.partial):
        words = dict(read.keywords)
        if "md5" in words:
            words["md5"] = dict.fromkeys(words["md5"], "")
        if "sha256" in words:
            words["sha256"] = ("", "")
        read = functools.partial(read.func, *read.args, **words)
    return dataclasses.replace(form, counts=None, read=read)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every data set be smaller than it is."""
    for name, source in CATALOGUE.items():
        folders = tuple(folder for folder in source.folders if not folder.startswith("/"))
        forms = tuple(unchecked(form) for form in source.forms)
        monkeypatch.setitem(CATALOGUE, name, dataclasses.replace(source, forms=forms, folders=folders))


def texts(data: fk.Dataset) -> tuple[list[str], list[str]]:
    assert isinstance(data.x, Texts)
    assert data.test is not None
    return list(data.x), list(data.test[0])


# Images ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.usefixtures("small")
def test_idx(tmp_path: Path, folder: str, packing: str) -> None:
    made = formats.mnist(tmp_path / folder, packing)
    data = fk.load("mnist", tmp_path)
    assert data.x.shape == (12, 1, 28, 28)
    assert data.x.dtype == torch.uint8
    assert np.array_equal(data.x[:, 0].numpy(), made["train"])
    assert data.test is not None
    assert np.array_equal(data.test[0][:, 0].numpy(), made["t10k"])
    assert data.y.tolist() == made["train labels"].tolist()
    assert data.key is None
    assert data.prepare is not None
    assert float(data.prepare(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8))) == pytest.approx((1 - 0.1307) / 0.3081)


@pytest.mark.usefixtures("small")
def test_the_folder_of_a_set_may_be_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats.mnist(tmp_path / "fashion-mnist")
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "fashion-mnist"))
    assert len(fk.load("fashion-mnist").y) == 12
    with pytest.raises(ValueError, match="'mnist' is not in"):  # whose file names are the same
        fk.load("mnist")


@pytest.mark.usefixtures("small")
def test_writers_of_mnist(tmp_path: Path) -> None:
    formats.mnist(tmp_path / "mnist")
    np.savez(tmp_path / "mnist/mnist_writers.npz", train_writer=np.arange(12) // 4 * 10)
    data = fk.load("mnist", tmp_path)
    assert data.key is not None
    assert data.key.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.split("by_key", clients=3).sizes.tolist() == [4, 4, 4]


@pytest.mark.usefixtures("small")
def test_emnist_is_turned_and_its_letters_begin_at_0(tmp_path: Path) -> None:
    made = formats.mnist(tmp_path / "emnist", prefix="emnist-letters-", test="test", first=1)
    data = fk.load("emnist-letters", tmp_path)
    assert np.array_equal(data.x[:, 0].numpy(), made["train"].swapaxes(1, 2))
    assert data.y.tolist() == made["train labels"].tolist()
    assert data.classes == 26


CIFARS = [("cifar10", CIFAR10_MD5, "labels", "cifar-10"), ("cifar100", CIFAR100_MD5, "fine_labels", "cifar-100")]


@pytest.mark.parametrize(("name", "md5", "label", "stem"), CIFARS, ids=["10", "100"])
@pytest.mark.parametrize("form", ["archive", "folder"])
@pytest.mark.usefixtures("small")
def test_cifar(tmp_path: Path, name: str, md5: dict[str, str], label: str, stem: str, form: str) -> None:
    files = formats.cifar_files(list(md5), label, 10)
    folder = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
    if form == "archive":
        formats.archive(tmp_path / f"{stem}-python.tar.gz", files, folder)
    else:
        formats.put(tmp_path / folder, files)
    data = fk.load(name, tmp_path)
    parts = [pickle.loads(files[key])[b"data"] for key in md5 if not key.startswith("test")]
    assert np.array_equal(data.x.numpy().reshape(-1, 3072), np.concatenate(parts))
    assert data.x.shape[1:] == (3, 32, 32)
    assert data.y.tolist() == list(range(7)) * len(parts)
    assert data.test is not None
    assert len(data.test[0]) == len(data.test[1]) == 7


def png(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.usefixtures("small")
def test_cifar_of_the_package_registry(tmp_path: Path) -> None:
    batches = formats.RNG.integers(0, 256, (6, 4, 32, 32, 3), dtype=np.uint8)
    files = {f"{name}.png": png(z.reshape(4, 1024, 3)) for name, z in zip(CIFAR10_MD5, batches, strict=True)}
    labels = {"train_lables.json": json.dumps([3] * 20).encode(), "test_lables.json": json.dumps([9] * 4).encode()}
    formats.put(tmp_path / "package", files | labels)
    data = fk.load("cifar10", tmp_path)
    assert np.array_equal(data.x.numpy().transpose(0, 2, 3, 1), batches[:5].reshape(-1, 32, 32, 3))
    assert data.test is not None
    assert data.test[1].tolist() == [9] * 4


@pytest.mark.usefixtures("small")
def test_a_part_of_cifar_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources._tell.cache_clear()
    pixels = formats.RNG.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    sheet = png(pixels.transpose(1, 0, 2, 3).reshape(32, 3200, 3), "WEBP", lossless=True)
    formats.put(tmp_path / "cifar10", {"train.webp": sheet, "test.webp": sheet})
    for part in ("train", "test"):
        np.savez(tmp_path / f"cifar10/{part}_labels.npz", label=np.arange(100) % 10)
    data = fk.load("cifar10", tmp_path)
    assert np.array_equal(data.x.numpy().transpose(0, 2, 3, 1), pixels)
    assert data.name == "cifar10-part"
    assert "cifar10 is not all of it: a fifth of it" in caplog.text


@pytest.mark.usefixtures("small")
def test_tiny_imagenet_folders(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    grey, white = formats.picture(mode="L", kind="JPEG")[0], formats.picture(kind="JPEG")[0]
    files = {f"train/{name}/images/{name}_{i}.JPEG": white for name in ("n2", "n1") for i in range(3)}
    files |= {"val/images/val_0.JPEG": white, "val/images/val_1.JPEG": grey, "wnids.txt": b"n2\nn1\n"}
    files |= {"val/val_annotations.txt": b"val_0.JPEG\tn2\t0\t0\t1\t1\nval_1.JPEG\tn1\t0\t0\t1\t1\n"}
    formats.put(root, files)
    data = fk.load("tiny-imagenet", tmp_path)
    assert data.x.shape == (6, 3, 64, 64)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test is not None
    assert data.test[1].tolist() == [1, 0]
    assert torch.equal(data.test[0][1, 0], data.test[0][1, 2])  # the grey one


@pytest.mark.usefixtures("small")
def test_leaf_femnist(tmp_path: Path) -> None:
    image = np.linspace(0, 1, 784)
    for part in ("train", "test"):
        users = {name: {"x": [image.tolist()] * n, "y": [61] * n} for name, n in (("a", 2), ("b", 3))}
        formats.packed(tmp_path / f"femnist/data/{part}/all_data_0.json", json.dumps({"user_data": users}))
    data = fk.load("femnist", tmp_path)
    assert data.name == "femnist"
    assert data.x.shape == (5, 1, 28, 28)
    assert np.array_equal(data.x[0].numpy().reshape(-1), np.round(255 * image).astype(np.uint8))
    assert data.key is not None
    assert data.key.tolist() == [0, 0, 1, 1, 1]
    assert data.classes == 62


# Texts ----------------------------------------------------------------------------------------------------------------

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
def test_newsgroups_lose_what_names_their_writers(tmp_path: Path) -> None:
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


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_adult(tmp_path: Path) -> None:
    row = "{}, {}, 1, Bachelors, 13, Married, Sales, Wife, White, Female, 0, 0, 40, United-States, {}\n"
    formats.packed(tmp_path / "adult/adult.data.gz", row.format(20, "Private", "<=50K") + row.format(40, "?", ">50K"))
    formats.packed(tmp_path / "adult/adult.test", "|1x3 Cross validator\n" + row.format(60, "Other", ">50K."))
    data = fk.load("adult", tmp_path)
    assert data.y.tolist() == [0, 1]
    assert data.test is not None
    assert data.test[1].tolist() == [1]
    assert data.x[:, 0].tolist() == [-1, 1]  # age, standardised
    assert data.test[0][0, 0] == 3
    assert sorted(data.x[:, 1:3].sum(0).tolist()) == [1, 1]  # Private, ?
    assert data.test[0][0, 1:3].tolist() == [0, 0]  # a word that training has not


@pytest.mark.usefixtures("small")
def test_covertype_is_the_same_from_both_files(tmp_path: Path) -> None:
    n = 50
    numeric, wilderness, soil = formats.RNG.integers(0, 3000, (n, 10)), np.arange(n) % 4, np.arange(n) % 40
    table = np.concatenate([numeric, np.eye(4)[wilderness], np.eye(40)[soil], (np.arange(n) % 7 + 1)[:, None]], axis=1)
    formats.packed(tmp_path / "a/covtype.data.gz", "".join(",".join(str(int(z)) for z in row) + "\n" for row in table))
    file = io.BytesIO()
    np.savez(file, numeric=numeric.astype(np.int16), wilderness=wilderness, soil=soil, label=np.arange(n) % 7 + 1)
    formats.put(tmp_path / "b/covertype", {"covtype.npz": file.getvalue()})
    one, two = (fk.load("covertype", tmp_path / folder) for folder in "ab")
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert one.x.shape == (40, 54)
    assert float(one.x[:, :10].mean(0).abs().max()) < 1e-5
    assert one.x[:, 10:].sum(1).tolist() == [2] * 40


# Damage ---------------------------------------------------------------------------------------------------------------


def short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.usefixtures("small")
def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    files = formats.cifar_files(list(CIFAR10_MD5), "labels", 10)
    files["data_batch_2"] = pickle.dumps({b"data": Evil(tmp_path / "owned"), b"labels": []})
    formats.put(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(ValueError, match=r"data_batch_2 cannot be read.*it asks for posix\.mkdir"):
        fk.load("cifar10", tmp_path)
    assert not (tmp_path / "owned").exists()


def test_published_checksums_and_counts_are_checked(tmp_path: Path) -> None:
    formats.put(tmp_path / "cifar-100-python", formats.cifar_files(["train", "test"], "fine_labels", 100))
    with pytest.raises(ValueError, match=r"cifar-100-python/train cannot be read.*checksum"):
        fk.load("cifar100", tmp_path)
    formats.mnist(tmp_path / "mnist")
    with pytest.raises(
        ValueError, match=r"train-images-idx3-ubyte\.gz cannot.*60,000 \+ 10,000 samples, these files 12 \+ 6"
    ):
        fk.load("mnist", tmp_path)


def damaged(tmp_path: Path, case: str) -> tuple[str, str]:
    """Writes a damaged set -> its name, and the file that the error has to name."""
    if case.startswith("idx"):
        formats.mnist(tmp_path / "mnist", "" if case == "idx raw" else ".gz")
        path = next((tmp_path / "mnist").glob("t10k-images*"))
        if case == "idx other":
            path.write_bytes(b"\x89PNG not an idx file")
            path.rename(path := path.with_suffix(""))
        elif case == "idx labels":
            formats.idx(path := next((tmp_path / "mnist").glob("t10k-labels*")), np.zeros(5, dtype=np.uint8))
            return "mnist", "t10k-images-idx3-ubyte.gz"
        else:
            short(path)
        return "mnist", path.name
    if case == "tar":
        formats.archive(
            path := tmp_path / "cifar-10-python.tar.gz", formats.cifar_files(list(CIFAR10_MD5), "labels", 10), "c"
        )
        path.write_bytes(path.read_bytes()[:20000])
        return "cifar10", path.name
    if case == "pickle":
        files = formats.cifar_files(list(CIFAR10_MD5), "labels", 10)
        formats.put(tmp_path / "cifar10", files | {"test_batch": files["test_batch"][:500]})
        return "cifar10", "test_batch"
    if case == "json":
        rows = [{"label": 0, "text": "a" * 50}] * 5
        formats.jsonl(tmp_path / "imdb/train.jsonl", rows)
        formats.jsonl(tmp_path / "imdb/test.jsonl", rows)
        short(tmp_path / "imdb/test.jsonl")
        return "imdb", "test.jsonl"
    if case == "xz":
        for part in ("train", "test"):
            formats.jsonl(tmp_path / f"imdb/{part}.jsonl.xz", [{"label": 0, "text": "a" * 50}] * 5)
        short(tmp_path / "imdb/train.jsonl.xz")
        return "imdb", "train.jsonl.xz"
    if case == "npz":
        np.savez(tmp_path / "femnist_digits.npz", image=np.zeros((9, 28, 28), dtype=np.uint8), label=np.zeros(9))
        short(tmp_path / "femnist_digits.npz")
        return "femnist", "femnist_digits.npz"
    tables = {
        "tsv column": "sentence\tmood\na\t1\n",
        "tsv row": "sentence\tlabel\na\t1\nb",
        "tsv label": "sentence\tlabel\na\t7\n",
    }
    for part in ("train", "dev"):
        formats.packed(tmp_path / f"sst2/{part}.tsv", tables[case])
    return "sst2", "train.tsv"


DAMAGES = [
    "idx raw",
    "idx gz",
    "idx other",
    "idx labels",
    "tar",
    "pickle",
    "json",
    "xz",
    "npz",
    "tsv column",
    "tsv row",
    "tsv label",
]


@pytest.mark.parametrize("case", DAMAGES)
@pytest.mark.usefixtures("small")
def test_damaged_files_are_named_in_one_line(tmp_path: Path, case: str) -> None:
    name, file = damaged(tmp_path, case)
    with pytest.raises(ValueError, match="cannot be read, it may be incomplete or another file: ") as error:
        fk.load(name, tmp_path)
    assert f"{file} cannot be read" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("name", [*CATALOGUE])
def test_what_is_missing_is_said(tmp_path: Path, name: str) -> None:
    if name == "fashion-mnist" and Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("Fashion-MNIST is installed on this system")
    with pytest.raises(ValueError, match=f"data: '{name}' is not in {tmp_path}; put ") as error:
        fk.load(name, tmp_path)
    assert ("fedkeel[hub]" in str(error.value)) == (CATALOGUE[name].hub is not None)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"needs a data directory \(data_dir=, --data-dir or FEDKEEL_DATA\); put "):
        fk.load(name)


def test_a_data_directory_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^data_dir = '.*/nowhere' is not allowed"):
        fk.load("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"^FEDKEEL_DATA = "):
        fk.load("mnist")
    assert len(fk.load("digits").y) == 1437
