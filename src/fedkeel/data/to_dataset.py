"""From the arrays of a reader to a Dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkeel.data.arrays import Arrays
from fedkeel.data.federation import Dataset
from fedkeel.data.texts import Texts
from fedkeel.data.transforms import Normalise

ChannelStatistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of every channel


def to_dataset(
    name: str,
    arrays: Arrays,
    statistics: ChannelStatistics | None = None,
    classes: int | None = None,
    vocabulary: int | None = None,
) -> Dataset:
    """The Dataset that these arrays describe. Images and characters stay bytes; the engine converts one batch at a time.

    statistics: used to normalise images (default: the statistics of the training images).
    """
    x = _inputs(arrays, "x")
    prepare: Any = None
    if isinstance(x, Tensor) and x.dtype == torch.uint8:
        prepare = as_integers if x.dim() == 2 else Normalise(*(statistics or statistics_of(arrays)))
    y, test_y = (torch.from_numpy(arrays[part]) for part in ("y", "test_y"))
    test = (_inputs(arrays, "test_x"), test_y)
    return Dataset(name, x, y, test, arrays.get("key"), prepare, None, classes, vocabulary)


def _inputs(arrays: Arrays, part: str) -> Any:
    """Texts, or a tensor that shares the memory of the array."""
    if part in arrays:
        return torch.from_numpy(arrays[part])
    return Texts(arrays[f"{part}.bytes"], arrays[f"{part}.offsets"])


def statistics_of(arrays: Arrays) -> ChannelStatistics:
    """Mean and deviation of every channel of the training images."""
    mean, std = (tuple(round(float(z), 4) for z in arrays[name]) for name in ("mean", "std"))
    return mean, std


def as_integers(x: Tensor) -> Tensor:
    """Characters as int64, which embeddings need."""
    return x.long()


# The name in version 0.1.0. It is part of the fingerprint of a federation, so runs of that version can be resumed.
as_integers.identity = "fedkeel.data.parsed.as_integers"  # type: ignore[attr-defined]
