"""idx files: MNIST, Fashion-MNIST and EMNIST. Images become x [n, 1, H, W] uint8."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import broken, contents, numpy_archive, reading


def idx(path: Path) -> np.ndarray:
    """The array in an idx file of bytes: two zeros, type 8, number of dimensions, each size, values."""
    data = contents(path)
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise broken(path, "it does not begin like an idx file of bytes")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise broken(path, "its heading is cut off")
    shape = tuple(int(z) for z in np.frombuffer(data[4:start], dtype=">u4"))
    if len(data) != start + math.prod(shape):
        raise broken(path, f"its heading promises {math.prod(shape):,} bytes, but it holds {len(data) - start:,}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def mnist(train_x: Path, train_y: Path, test_x: Path, test_y: Path, writers: Path | None = None) -> Arrays:
    """Four idx files.  writers: a file that says who wrote each training image."""
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
    """Like MNIST, but images are stored column by column.  first: the number of the first class in the files."""
    arrays = mnist(*paths)
    for part in ("", "test_"):
        arrays[f"{part}x"] = np.ascontiguousarray(arrays[f"{part}x"].swapaxes(2, 3))
        arrays[f"{part}y"] -= first
    return arrays
