"""From (text, label) pairs to arrays, for all readers of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedkeel.data.arrays import Arrays, held_out
from fedkeel.data.texts import Texts

Samples = list[tuple[str, Any]]  # (text, label)


def text_arrays(part: str, samples: Sequence[tuple[str, int]]) -> Arrays:
    """Texts and labels as arrays.  part: "" for training, "test_" for testing."""
    texts = Texts.from_strings(text for text, _ in samples)
    y = np.array([label for _, label in samples], dtype=np.int64)
    return {f"{part}x.bytes": texts.data, f"{part}x.offsets": texts.offsets, f"{part}y": y}


def train_and_test(train: Samples, test: Samples) -> Arrays:
    return text_arrays("", train) | text_arrays("test_", test)


def with_held_out(samples: Samples, key: Iterable[Any] | None = None) -> Arrays:
    """Holds out a fifth for testing.  key: who wrote each text; owners are numbered in sorted order."""
    owner = None if key is None else np.unique(np.array(list(key)), return_inverse=True)[1]
    split = held_out(np.arange(len(samples)), np.zeros(len(samples)), owner)
    arrays = train_and_test([samples[i] for i in split["x"]], [samples[i] for i in split["test_x"]])
    return arrays if owner is None else arrays | {"key": split["key"]}
