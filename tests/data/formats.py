"""Writes small data sets in the formats that people have on disk."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)


def idx(path: Path, array: np.ndarray) -> None:
    data = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def mnist(folder: Path, packing: str = ".gz", prefix: str = "", test: str = "t10k", first: int = 0) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, n in (("train", 12), (test, 6)):
        x, y = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % 3 + first).astype(np.uint8)
        idx(folder / f"{prefix}{part}-images-idx3-ubyte{packing}", x)
        idx(folder / f"{prefix}{part}-labels-idx1-ubyte{packing}", y)
        made |= {part: x, f"{part} labels": y.astype(np.int64) - first}
    return made


def cifar_files(names: list[str], label: str, classes: int) -> dict[str, bytes]:
    """Pickles with keys of bytes, as Python 2 wrote them."""
    files = {}
    for name in names:
        x = RNG.integers(0, 256, (7, 3072), dtype=np.uint8)
        files[name] = pickle.dumps({b"data": x, label.encode(): [i % classes for i in range(7)]}, protocol=2)
    return files


def archive(path: Path, files: dict[str, bytes], folder: str) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, lambda data: data)
    path.write_bytes(pack(text.encode()))


def jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    packed(path, "".join(json.dumps(row) + "\n" for row in rows))


def picture(size: int = 64, mode: str = "RGB", kind: str = "PNG") -> tuple[bytes, np.ndarray]:
    """The bytes of a picture file, and its pixels [H, W, 3]; JPEG changes them."""
    from PIL import Image

    pixels = RNG.integers(0, 256, (size, size, 3), dtype=np.uint8)
    made = Image.fromarray(pixels).convert(mode)
    file = io.BytesIO()
    made.save(file, kind)
    return file.getvalue(), np.asarray(made.convert("RGB"))
