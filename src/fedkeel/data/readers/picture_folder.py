"""Pictures in one folder per class: `from_folder`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedkeel.data.arrays import Arrays, held_out, with_channel_statistics
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.file_contents import broken
from fedkeel.data.readers.pictures import pictures
from fedkeel.data.to_dataset import to_dataset

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


def from_folder(path: str | Path, size: int | None = None) -> Dataset:
    """Pictures in one folder per class. If there is no test part, a fifth is held out for testing.

    A test part is a folder `test` or `val` beside a folder `train`. Every class of it must be in `train`.

    size: scales all pictures to size x size. Without it they must have one size.

    >>> from_folder("~/flowers", size=64).split("iid", clients=10)
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"data: there is no folder {root}")
    parts = [root]
    if (root / "train").is_dir():
        parts = [root / "train", next((root / name for name in ("test", "val") if (root / name).is_dir()), root / "test")]
    _check_classes(parts)  # here and not in the reader: an old cache may hold pictures that were read without this check
    arrays = cached(root.name, f"folder {size}", [root], lambda: _read_folder(parts, size))
    return to_dataset(root.name, arrays)


def _folders(part: Path) -> list[str]:
    return sorted(folder.name for folder in part.iterdir() if folder.is_dir()) if part.is_dir() else []


def _pictures(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix.lower() in PICTURES] if folder.is_dir() else []


def _check_classes(parts: Sequence[Path]) -> None:
    """Refuses classes that only the test part has. A folder without pictures is not a class."""
    train, test = parts[0], parts[-1]
    known = _folders(train)
    unknown = [name for name in _folders(test) if name not in known and _pictures(test / name)]
    if unknown:
        shown = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        raise ValueError(f"data: {test} has classes that are not in {train}: {shown}; every class must be in {train.name}")


def _read_folder(parts: Sequence[Path], size: int | None) -> Arrays:
    names = _folders(parts[0])
    read = []
    for part in parts:
        files = [(file, label) for label, name in enumerate(names) for file in _pictures(part / name)]
        if not files:
            raise broken(part, "there are no folders of pictures; it needs one folder per class")
        read.append((pictures([file for file, _ in files], size), np.array([label for _, label in files], dtype=np.int64)))
    if len(read) == 1:
        return with_channel_statistics(held_out(*read[0]))
    (x, y), (test_x, test_y) = read
    return with_channel_statistics({"x": x, "y": y, "test_x": test_x, "test_y": test_y})
