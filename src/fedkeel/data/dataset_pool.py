"""Data sets of torch and of Hugging Face as the inputs of a federation: samples are read when a batch needs them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.errors import describe

Collate = Callable[[list[Any]], Any]  # samples -> one batch
CHUNK = 256  # samples of a batch in an evaluation, or of a piece of a full gradient
PROBES = 64  # samples that the fingerprint reads, at most
OPEN = 64  # streams that a process keeps open


class DatasetPool:
    """The data sets of all clients one after the other. Row r is a sample of one of them.

    A map-style data set has a length and takes an index. A stream (an iterable data set) can only be read from its start.
    """

    def __init__(self, datasets: Sequence[Any], collate: Collate | None, sizes: Sequence[int]) -> None:
        self.datasets, self.collate = list(datasets), collate or collated
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)  # [datasets + 1] first row of each
        self.streams = [not is_map_style(dataset) for dataset in self.datasets]
        self._open: dict[int, tuple[Iterator[Any], int]] = {}  # stream -> its iterator, and the number of its next sample
        self._process = os.getpid()

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def in_order(self) -> bool:
        """Must samples be read in their order, because some of the data sets are streams?"""
        return any(self.streams)

    def batch(self, rows: np.ndarray, seed: int = 0) -> tuple[Any, Any]:
        """The samples of these rows as one batch: (x, y), or (the batch, None) if it is not a pair.

        seed: of the random numbers that a data set draws, for example to change pictures. So they depend on nothing else.
        """
        with _seeded(seed):
            samples = self._samples(rows)
            try:
                batch = self.collate(samples)
            except Exception as error:
                raise ValueError(
                    f"collate: it cannot make a batch of {len(samples)} samples: {describe(error)}; pass a collate= that can"
                ) from error
        return (batch[0], batch[1]) if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)

    def _samples(self, rows: np.ndarray) -> list[Any]:
        owners = np.searchsorted(self.starts, rows, side="right") - 1
        cuts = np.flatnonzero(np.diff(owners)) + 1
        samples: list[Any] = []
        for part in np.split(np.arange(len(rows)), cuts):
            owner = int(owners[part[0]])
            numbers = (rows[part] - self.starts[owner]).tolist()
            samples += self._stream(owner, numbers) if self.streams[owner] else _items(self.datasets[owner], numbers)
        return samples

    def _stream(self, owner: int, numbers: list[int]) -> list[Any]:
        """Samples of a stream. It is read on from where the last call stopped, or again from its start."""
        if self._process != os.getpid():  # the other process goes on reading the files that it has open
            self._open, self._process = {}, os.getpid()
        samples = []
        for number in numbers:
            iterator, at = self._open.pop(owner, (None, 0))
            if iterator is None or number < at:
                iterator, at = iter(self.datasets[owner]), 0
            try:
                for _ in range(number - at):
                    next(iterator)
                samples.append(next(iterator))
            except StopIteration:
                n = int(self.starts[owner + 1] - self.starts[owner])
                raise ValueError(
                    f"clients[{owner}]: the stream ended before sample {number}, but it should have {n}"
                ) from None
            self._open[owner] = iterator, number + 1
        while len(self._open) > OPEN:
            del self._open[next(iter(self._open))]
        return samples

    def digest(self) -> bytes:
        """A hash of the sizes, of the data sets' kinds and of some samples."""
        found = hashlib.blake2b(self.starts.tobytes(), digest_size=16)
        for dataset in self.datasets:
            # Hugging Face's data sets know a hash of their content.
            found.update(f"{type(dataset).__qualname__}{getattr(dataset, '_fingerprint', '')}".encode())
        firsts = self.starts[:-1][np.array(self.streams)]  # a stream would have to be read up to any other sample
        spread = np.linspace(0, len(self) - 1, min(PROBES, len(self))).astype(np.int64)
        owners = np.searchsorted(self.starts, spread, side="right") - 1
        rows = [*firsts[:PROBES], *(row for row, owner in zip(spread, owners, strict=True) if not self.streams[owner])]
        for row in rows:
            _add(found, self.batch(np.array([row])))
        return found.digest()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}  # an iterator cannot be sent to another process


def is_map_style(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def pool_of(datasets: Any, collate: Collate | None, sizes: Sequence[int] | None, where: str) -> DatasetPool:
    """The pool of these data sets.  sizes: the number of samples of each, if you know it.  where: the start of messages."""
    if isinstance(datasets, str | Mapping) or not isinstance(datasets, Iterable) or is_dataset(datasets):
        raise ValueError(f"{where}: expected a list with one data set per client, not {kind_of(datasets)}")
    datasets = list(datasets)
    if sizes is not None and len(sizes) != len(datasets):
        raise ValueError(f"sizes: there are {len(sizes)}, but {len(datasets)} data sets")
    counted = []
    for i, dataset in enumerate(datasets):
        name = where if where == "test" else f"{where}[{i}]"
        _check(dataset, name)
        n = sizes[i] if sizes is not None else len(dataset) if hasattr(dataset, "__len__") else sum(1 for _ in dataset)
        if n < 1:
            raise ValueError(f"{name}: it has no samples; every client needs at least one")
        counted.append(int(n))
    if not datasets:
        raise ValueError(f"{where}: there are none; give at least one data set")
    return DatasetPool(datasets, collate, counted)


def is_dataset(value: Any) -> bool:
    """Is it a data set of torch or of Hugging Face?"""
    from torch.utils.data import Dataset

    return isinstance(value, Dataset) or type(value).__module__.split(".")[0] == "datasets"


def kind_of(value: Any) -> str:
    """The class of a value for messages, with the package of a class from elsewhere: datasets.Dataset."""
    package = type(value).__module__.split(".")[0]
    return type(value).__name__ if package in ("builtins", "fedkeel") else f"{package}'s {type(value).__name__}"


def _check(dataset: Any, where: str) -> None:
    from torch.utils.data import DataLoader

    if isinstance(dataset, DataLoader):
        raise ValueError(f"{where}: a DataLoader makes batches in its own order; pass its data set, loader.dataset")
    if type(dataset).__name__ in ("DatasetDict", "IterableDatasetDict"):
        raise ValueError(f"{where}: {kind_of(dataset)} holds several splits; choose one, for example dataset['train']")
    if isinstance(dataset, tuple | Tensor | np.ndarray | Mapping | str):
        raise ValueError(
            f"{where}: expected a data set, not {kind_of(dataset)}; pairs of arrays are for Federation.from_arrays"
        )
    if not is_map_style(dataset) and not hasattr(dataset, "__iter__"):
        raise ValueError(
            f"{where}: expected a data set with __len__ and __getitem__, or with __iter__, not {kind_of(dataset)}"
        )


def _items(dataset: Any, numbers: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):  # reads several samples at once, if the data set can do that
        return list(dataset.__getitems__(numbers))
    return [dataset[number] for number in numbers]


def collated(samples: list[Any]) -> Any:
    """Samples as one batch: numbers and arrays become tensors [B, ...], dictionaries and tuples keep their form."""
    from torch.utils.data import default_collate

    return default_collate([_with_tensors(sample) for sample in samples])


def _with_tensors(sample: Any) -> Any:
    """The sample with tensors instead of lists of numbers, as Hugging Face's data sets give them."""
    if isinstance(sample, Mapping):
        return {key: _with_tensors(z) for key, z in sample.items()}
    if isinstance(sample, tuple):
        return tuple(_with_tensors(z) for z in sample)
    if isinstance(sample, list):
        try:
            return torch.tensor(sample)
        except (TypeError, ValueError, RuntimeError):
            return [_with_tensors(z) for z in sample]
    return sample


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Data sets draw from the global generators of torch, numpy and Python. Afterwards these are as they were."""
    kept = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])


def _add(digest: Any, value: Any) -> None:
    """Adds a nested value to a hash."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(str(key).encode())
            _add(digest, value[key])
    elif isinstance(value, tuple | list):
        for z in value:
            _add(digest, z)
    else:
        digest.update(repr(value).encode())
