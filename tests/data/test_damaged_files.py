"""A damaged or foreign file gives an error that names it, and no file can run code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data.catalogue import CIFAR10_MD5
from tests.data import formats

pytestmark = pytest.mark.usefixtures("alone")


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
        ValueError, match=r"train-images-idx3-ubyte\.gz cannot.*60,000 \+ 10,000 samples, these files have 12 \+ 6"
    ):
        fk.load("mnist", tmp_path)


def damaged(tmp_path: Path, case: str) -> tuple[str, str]:
    """Writes a damaged set -> its name, and the file that the error must name."""
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
