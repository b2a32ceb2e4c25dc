"""Data sets by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedkeel.core.algorithm import nearest
from fedkeel.data.federation import Dataset
from fedkeel.data.transforms import augmentation


@functools.cache
def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels in 10 classes; part of scikit-learn (UCI, Alpaydin and Kaynak)."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[:, None]  # [n, 1, 8, 8] in [0, 1]
    x, x_test, y, y_test = train_test_split(images, bunch.target, test_size=0.2, random_state=0, stratify=bunch.target)
    as_tensors = [torch.from_numpy(np.ascontiguousarray(z)) for z in (x, y, x_test, y_test)]
    return Dataset("digits", as_tensors[0], as_tensors[1], (as_tensors[2], as_tensors[3]))


SOURCES: dict[str, Callable[[], Dataset]] = {"digits": digits}


def load(name: str, data_dir: str | Path | None = None, augment: str | None = None) -> Dataset:
    """The data set `name`; `fedkeel datasets` lists them.

    data_dir: where its files are looked for (default: the environment variable FEDKEEL_DATA).
    augment: "crop-flip" pads, crops and mirrors training images at random.
    """
    if name not in SOURCES:
        raise ValueError(f"data: unknown name {name!r}{nearest(name, SOURCES)}")
    data = SOURCES[name]()
    return dataclasses.replace(data, augment=augmentation(augment, tuple(data.x.shape[1:])))
