"""Data sets of the Hugging Face hub, read with the package `datasets`: `from_hub`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.data.arrays import Arrays, held_out, with_channel_statistics
from fedkeel.data.cache import cached
from fedkeel.data.federation import Dataset
from fedkeel.data.readers.pictures import channels_first
from fedkeel.data.readers.text_arrays import text_arrays
from fedkeel.data.schema import Schema
from fedkeel.data.texts import PAIR
from fedkeel.data.to_dataset import to_dataset
from fedkeel.errors import nearest

CLASS_NAMES = "class_names"  # the array that holds them, as JSON
GUESSES = ("image", "img", "text", "sentence", "content", "question")  # columns that usually hold the inputs


def from_hub(
    name: str,
    config: str | None = None,
    x: str | Sequence[str] | None = None,
    y: str = "label",
    key: str | None = None,
    train: str = "train",
    test: str | None = "test",
) -> Dataset:
    """Pictures or texts with classes, from the hub or from a folder that `datasets` can read.

    name, config: as for `datasets.load_dataset`.
    x: the column of inputs. Name several if a sample consists of several texts.
    y: the column of classes.
    key: the column that names the owner of a sample, for the split `by_key`.
    train, test: the splits for training and for testing. With test=None a fifth of the training split is held out.

    >>> from_hub("stanfordnlp/imdb").split("iid", clients=100)
    """
    place = [Path(name)] if Path(name).exists() else []
    short = name.rstrip("/").rpartition("/")[2] + (f"-{config}" if config else "")
    request = repr((name, config, x, y, key, train, test))
    arrays = cached(f"hub-{short}", request, place, lambda: _fetch(name, config, x, y, key, train, test))
    data = to_dataset(name, arrays)
    if CLASS_NAMES not in arrays:
        return data
    names = tuple(json.loads(arrays[CLASS_NAMES].tobytes()))
    return dataclasses.replace(data, classes=len(names), schema=Schema(names, label=y))


def _fetch(
    name: str, config: str | None, x: str | Sequence[str] | None, y: str, key: str | None, train: str, test: str | None
) -> Arrays:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("data: the Hugging Face hub needs the package datasets: pip install 'fedkeel[hub]'") from error
    try:
        with _quiet():
            loaded = datasets.load_dataset(name, config)
        parts = [loaded[split] for split in (train, test) if split is not None]
    except Exception as error:  # the network, the hub and the files raise errors of many kinds
        raise ValueError(f"data: the hub did not deliver {name!r} ({type(error).__name__}: {error})") from error
    columns = [x] if isinstance(x, str) else list(x or _guess(name, parts[0].column_names))
    for column in [*columns, y, *([] if key is None else [key])]:
        if column not in parts[0].column_names:
            raise ValueError(f"data: {name!r} has no column {column!r}{nearest(column, parts[0].column_names)}")
    owner = None if key is None else np.unique(np.array(parts[0][key]), return_inverse=True)[1].astype(np.int64)
    rows = [np.arange(len(part)) for part in parts]
    if test is None:
        split = held_out(rows[0], rows[0])
        parts, rows = [parts[0]] * 2, [split["x"], split["test_x"]]
    arrays: Arrays = {} if owner is None else {"key": owner[rows[0]]}
    for prefix, part, mine in zip(("", "test_"), parts, rows, strict=True):
        arrays |= _part(prefix, part, mine, columns, y)
    names = getattr((getattr(parts[0], "features", None) or {}).get(y), "names", None)
    if names:
        arrays[CLASS_NAMES] = np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)
    return with_channel_statistics(arrays)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the log lines about every attempt. If all of them fail, the error says why."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _guess(name: str, columns: Sequence[str]) -> list[str]:
    likely = [column for column in GUESSES if column in columns][:1]
    if not likely:
        raise ValueError(f"data: {name!r} has the columns {', '.join(columns)}; name the column of inputs with x=")
    return likely


def _part(prefix: str, part: Any, rows: np.ndarray, columns: Sequence[str], y: str) -> Arrays:
    labels = np.array(part[y], dtype=np.int64)[rows]
    if isinstance(part[0][columns[0]], str):
        texts = list(zip(*(part[column] for column in columns), strict=True))
        return text_arrays(prefix, [(PAIR.join(texts[i]), int(label)) for i, label in zip(rows, labels, strict=True)])
    pictures = (part[int(i)][columns[0]] for i in rows)
    x = np.stack([np.asarray(picture.convert(_mode(picture))) for picture in pictures])
    x = x[:, None] if x.ndim == 3 else channels_first(x)
    return {f"{prefix}x": x, f"{prefix}y": labels}


def _mode(picture: Any) -> str:
    return "L" if picture.mode in ("1", "L", "I", "F") else "RGB"
