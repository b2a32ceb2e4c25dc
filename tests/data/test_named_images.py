"""Image sets by name, in every layout that their files may have."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedkeel as fk
from fedkeel.data import named_sets
from fedkeel.data.catalogue import CIFAR10_MD5, CIFAR100_MD5
from tests.data import formats

pytestmark = pytest.mark.usefixtures("alone")


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
def test_data_dir_may_be_the_folder_of_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats.mnist(tmp_path / "fashion-mnist")
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "fashion-mnist"))
    assert len(fk.load("fashion-mnist").y) == 12
    with pytest.raises(ValueError, match="'mnist' is not in"):  # its files have the same names
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
def test_emnist_is_transposed_and_its_letters_start_at_0(tmp_path: Path) -> None:
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
def test_a_part_of_cifar_gets_another_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    named_sets._warn_partial.cache_clear()
    pixels = formats.RNG.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    sheet = png(pixels.transpose(1, 0, 2, 3).reshape(32, 3200, 3), "WEBP", lossless=True)
    formats.put(tmp_path / "cifar10", {"train.webp": sheet, "test.webp": sheet})
    for part in ("train", "test"):
        np.savez(tmp_path / f"cifar10/{part}_labels.npz", label=np.arange(100) % 10)
    data = fk.load("cifar10", tmp_path)
    assert np.array_equal(data.x.numpy().transpose(0, 2, 3, 1), pixels)
    assert data.name == "cifar10-part"
    assert "only a part of cifar10: a fifth of the images" in caplog.text


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
