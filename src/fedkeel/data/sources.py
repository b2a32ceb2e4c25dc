"""Data sets by name."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from fedkeel.core.algorithm import nearest
from fedkeel.data.federation import Dataset


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


def load(name: str) -> Dataset:
    """The data set `name`; `fedkeel datasets` lists them."""
    if name not in SOURCES:
        raise ValueError(f"data: unknown name {name!r}{nearest(name, SOURCES)}")
    return SOURCES[name]()
