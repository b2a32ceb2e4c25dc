"""Picture files (PNG, JPEG, WebP ...), opened by Pillow."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from fedkeel.data.readers.file_contents import broken, reading


def pixels(path: Path | io.BytesIO, size: int | None = None) -> np.ndarray:
    """A picture as [H, W, 3] uint8.  size: the picture is scaled to size x size.

    Pillow refuses a picture that would take more than half a gigabyte.
    """
    from PIL import Image

    where = path if isinstance(path, Path) else Path("a picture")
    with reading(where), Image.open(path) as file:
        picture = file.convert("RGB")
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(picture)


def channels_first(x: np.ndarray) -> np.ndarray:
    """[n, H, W, C] -> [n, C, H, W]."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def pictures(paths: list[Path], size: int | None = None) -> np.ndarray:
    """Picture files as [n, 3, H, W] uint8. They must have one size, or are scaled to `size` x `size`."""
    first = pixels(paths[0], size)
    x = np.empty((len(paths), 3, *first.shape[:2]), dtype=np.uint8)
    for i, path in enumerate(paths):
        one = pixels(path, size)
        if one.shape != first.shape:
            raise broken(path, f"it is {one.shape[1]} x {one.shape[0]}, others are {first.shape[1]} x {first.shape[0]}")
        x[i] = one.transpose(2, 0, 1)
    return x
