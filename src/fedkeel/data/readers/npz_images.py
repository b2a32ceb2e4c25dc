"""Images in one .npz file. They become x [n, 1, H, W] uint8."""

from __future__ import annotations

from pathlib import Path

from fedkeel.data.arrays import Arrays, held_out
from fedkeel.data.readers.file_contents import numpy_archive, reading


def read(path: Path, owner: str | None = None) -> Arrays:
    """The arrays image [n, H, W] and label. A fifth is held out for testing.

    owner: the name of the array that says who drew each image.
    """
    with reading(path):
        z = numpy_archive(path)
        return held_out(z["image"][:, None], z["label"], None if owner is None else z[owner])
