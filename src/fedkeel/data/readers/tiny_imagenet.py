"""TinyImageNet, as published and as packed JPEG files. Images become x [n, 3, 64, 64] uint8."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import lines, numpy_archive, reading
from fedkeel.data.readers.pictures import channels_first, pictures, pixels


def folder(train: Path, val: Path, names: Path) -> Arrays:
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


def packed(train: Path, val: Path) -> Arrays:
    """Two .npz files with the arrays jpeg (the bytes of all files), offset [n + 1] and label."""
    arrays: Arrays = {}
    for part, path in (("", train), ("test_", val)):
        with reading(path):
            z = numpy_archive(path)
            data, ends, n = z["jpeg"], z["offset"].astype(np.int64), len(z["label"])
            if len(ends) != n + 1 or ends[-1] != len(data):
                raise ValueError(f"{n} labels, {len(ends)} offsets up to {ends[-1]}, {len(data)} bytes")
            x = np.stack([pixels(io.BytesIO(data[ends[i] : ends[i + 1]].tobytes())) for i in range(n)])
        arrays |= {f"{part}x": channels_first(x), f"{part}y": z["label"].astype(np.int64)}
    return arrays
