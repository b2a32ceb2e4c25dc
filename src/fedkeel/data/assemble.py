"""From arrays as they were parsed to a data set as engines take it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.federation import Dataset
from fedkeel.data.readers.files import Arrays
from fedkeel.data.texts import Texts
from fedkeel.data.transforms import Normalise

Stats = tuple[tuple[float, ...], tuple[float, ...]]


def with_stats(arrays: Arrays) -> Arrays:
    """With mean and deviation of every channel of the training samples, in [0, 1], if they are images of bytes."""
    x = arrays.get("x")
    if x is None or x.dtype != np.uint8 or x.ndim != 4:
        return arrays
    counts = np.stack([np.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])])
    share, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ values
    std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0))
    return arrays | {"mean": mean, "std": np.where(std > 0, std, 1)}


def dataset(
    name: str, arrays: Arrays, stats: Stats | None = None, classes: int | None = None, vocabulary: int | None = None
) -> Dataset:
    """The data set that parsed arrays are. Images stay bytes until the engine normalises a batch; so do characters.

    stats: mean and deviation of an image's channels; default: those of the training images.
    """
    x = inputs(arrays, "x")
    prepare: Any = None
    if isinstance(x, Tensor) and x.dtype == torch.uint8:
        prepare = as_integers if x.dim() == 2 else Normalise(*(stats or _stats_of(arrays)))
    y, test_y = (torch.from_numpy(arrays[part]) for part in ("y", "test_y"))
    test = (inputs(arrays, "test_x"), test_y)
    return Dataset(name, x, y, test, arrays.get("key"), prepare, None, classes, vocabulary)


def inputs(arrays: Arrays, part: str) -> Any:
    """A tensor that shares the memory of the array, or texts."""
    if part in arrays:
        return torch.from_numpy(arrays[part])
    return Texts(arrays[f"{part}.bytes"], arrays[f"{part}.offsets"])


def _stats_of(arrays: Arrays) -> Stats:
    mean, std = (tuple(round(float(z), 4) for z in arrays[name]) for name in ("mean", "std"))
    return mean, std


def as_integers(x: Tensor) -> Tensor:
    return x.long()
