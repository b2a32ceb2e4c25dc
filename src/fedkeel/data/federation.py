"""Clients and their data: one pair of arrays for all clients, and the rows that belong to each client."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.dataset_pool import Collate, DatasetPool, is_dataset, kind_of, pool_of
from fedkeel.data.partition import Splitter, partition, spelled
from fedkeel.data.schema import Schema
from fedkeel.data.texts import Texts

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has almost no operations for them
Prepare = Callable[[Tensor], Tensor]  # stored samples [B, ...] -> what the model takes
Augment = Callable[[Tensor, np.random.Generator], Tensor]  # stored samples [B, ...] -> the same samples, changed at random


@dataclass(frozen=True)
class ClientData:
    """The samples of one client. Texts are strings, until a model says how to read them."""

    x: Any  # Tensor [n, ...], or Texts
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"ClientData({_inputs(self.x)})"


@dataclass(repr=False)
class Federation:
    """N clients. Client i owns the rows order[offsets[i]:offsets[i + 1]] of x and y.

    Without an order, it owns the rows offsets[i] to offsets[i + 1]. So the data are never copied, not even for a million
    clients.
    """

    x: Any  # Tensor [n, ...], Texts, or a DatasetPool that reads samples when a batch needs them
    y: Any  # Tensor [n, ...]; None for a DatasetPool
    offsets: np.ndarray  # [N + 1]
    order: np.ndarray | None = None  # [n]
    test: tuple[Any, Any] | None = None
    origin: dict[str, Any] = field(default_factory=dict)  # data, split and its options; empty for arrays that you passed
    prepare: Prepare | None = None  # applied to every batch, in training and evaluation
    augment: Augment | None = None  # applied before `prepare`, and only to the mini-batches of training
    classes: int | None = None  # how many
    vocabulary: int | None = None  # for token ids: how many different ones there are
    schema: Schema | None = None  # how a table or a folder of pictures was read; a run keeps it

    def __post_init__(self) -> None:
        # [N] samples of every client. Computed once: the cost of a round must not grow with N.
        self.sizes: np.ndarray = np.diff(self.offsets)
        empty = np.flatnonzero(self.sizes == 0)
        if len(self) == 0:
            raise ValueError("clients: there are none; give at least one (x, y) pair")
        if len(empty):
            raise ValueError(
                f"clients: client {empty[0]} has no samples ({len(empty)} such clients); every client needs at least one"
            )

    @classmethod
    def from_arrays(cls, clients: Sequence[tuple[Any, Any]], test: tuple[Any, Any] | None = None) -> Federation:
        """A federation from one (x, y) pair of arrays, tensors or pandas objects per client, and an optional test pair.

        x may also be a list of strings. Every number must be finite.
        """
        if not isinstance(clients, Iterable):
            raise ValueError(f"clients: expected a list of (x, y) pairs, not {kind_of(clients)}{misplaced(clients)}")
        pairs = [_pair(pair, f"clients[{i}]") for i, pair in enumerate(clients)]
        sizes = [len(y) for _, y in pairs]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if not pairs or 0 in sizes:
            return cls(torch.zeros(0), torch.zeros(0), offsets)  # its checks raise the error that names the empty client
        for i, pair in enumerate(pairs):
            _same_shapes(pair, pairs[0], f"clients[{i}]")
        if test is not None:
            test = _pair(test, "test")
            if len(test[1]) == 0:
                raise ValueError("test: it has no samples; pass None for no test data")
        if isinstance(pairs[0][0], Texts):
            x: Any = Texts.from_strings(text for texts, _ in pairs for text in texts)
        else:
            x = torch.cat([x for x, _ in pairs])
        y = torch.cat([y for _, y in pairs])
        return cls(x, y, offsets, None, test)

    @classmethod
    def from_datasets(
        cls, datasets: Sequence[Any], test: Any = None, collate: Collate | None = None, sizes: Sequence[int] | None = None
    ) -> Federation:
        """A federation from one data set per client, and an optional data set for testing.

        A data set is one of torch or of Hugging Face, or any object with `__len__` and `__getitem__`. Samples are read when
        a batch needs them. If a batch is a pair (x, y), train as usual. Any other batch, such as a dictionary, needs the
        argument `step` of `train`.

        A data set may also be a stream: an object with `__iter__`, which starts again at every call. In round t a client
        reads its stream on from sample t * (samples of a round), modulo its length. Shuffle a stream yourself.

        collate: makes a batch of a list of samples (default: that of torch, and lists of numbers become tensors).
        sizes: the number of samples of each client. Without it, a stream that has no length is read once to count them.

        >>> Federation.from_datasets([Subset(images, rows) for rows in owners], test=test_images)
        """
        pool = pool_of(datasets, collate, sizes, "datasets")
        tested = None if test is None else (pool_of([test], collate, None, "test"), None)
        return cls(pool, None, pool.starts, None, tested)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        smallest, largest = int(self.sizes.min()), int(self.sizes.max())
        sizes = f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}"
        name = f"{self.origin['data']}, " if "data" in self.origin else ""
        split = f", split {self.origin['split']}" if "split" in self.origin else ""
        tested = "" if self.test is None else f", {len(self.test[0]):,} for testing"
        kinds = "" if self.classes is None else f", {self.classes} classes"
        clients = f"{len(self):,} clients with {sizes} samples each"
        return f"Federation({name}{clients}{split}: {_inputs(self.x)}{kinds}{tested})"

    def _repr_html_(self) -> str:
        """For notebooks: the short text and, if the targets are classes, a picture of the split."""
        from fedkeel.data.label_plot import split_html

        return split_html(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as the model takes it."""
        if not isinstance(self.x, Tensor):
            what = "texts" if isinstance(self.x, Texts) else "samples of data sets"
            raise ValueError(f"shape: {what} have none before a model reads them")
        one = self.x[:1]
        return tuple((one if self.prepare is None else self.prepare(one)).shape[1:])

    def __getitem__(self, client: int) -> ClientData:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} does not exist: there are {len(self)}")
        if isinstance(self.x, DatasetPool):
            raise ValueError(
                f"fed[{client}]: samples of data sets are read batch by batch; fed.take({client}, rows) gives one"
            )
        return ClientData(*self.take(client, None))

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def rows(self, client: int, numbers: np.ndarray) -> np.ndarray:
        """Sample numbers of a client -> rows of x and y."""
        places: np.ndarray = self.offsets[client] + numbers
        return places if self.order is None else self.order[places]

    def take(self, client: int, numbers: np.ndarray | None) -> tuple[Any, Any]:
        """The given samples of a client, or all of them."""
        if numbers is None:
            if self.order is None and isinstance(self.x, Tensor):
                part = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
                return self.x[part], self.y[part]
            numbers = np.arange(self.size(client))
        return self.take_rows(self.rows(client, numbers))

    def take_rows(self, rows: np.ndarray) -> tuple[Any, Any]:
        if isinstance(self.x, DatasetPool):
            return self.x.batch(rows)
        index = torch.from_numpy(rows)
        if isinstance(self.x, Texts):
            return self.x.take(rows), self.y.index_select(0, index)
        return self.x.index_select(0, index), self.y.index_select(0, index)

    def label_counts(self, classes: int) -> np.ndarray:
        """Samples of every class at every client, [N, C]."""
        if self.y is None:
            raise ValueError("label_counts: the labels of data sets are not known before they are read")
        owner = np.repeat(np.arange(len(self)), self.sizes)
        labels = self.y.numpy() if self.order is None else self.y.numpy()[self.order]
        return np.bincount(owner * classes + labels, minlength=len(self) * classes).reshape(len(self), classes)

    def fingerprint(self, most_inputs: int | None = None) -> str:
        """A hash of all inputs, of all labels and of the split.

        For data sets, a hash of some of their samples.  most_inputs: take about this number of inputs at regular distances.
        """
        digest = hashlib.blake2b(digest_size=16)
        parts: list[Any] = [self.offsets, self.order]
        for x, y in [(self.x, self.y)] + ([] if self.test is None else [self.test]):
            if isinstance(x, Tensor):
                parts += [x if most_inputs is None else x[:: max(1, len(x) // most_inputs)], y]
            else:
                digest.update(x.digest.encode() if isinstance(x, Texts) else x.digest())
                parts.append(y)
        for part in parts:
            if part is not None:
                z = torch.as_tensor(part).cpu().contiguous()
                digest.update(f"{z.dtype}{tuple(z.shape)}".encode())
                digest.update(z.reshape(-1).view(torch.uint8).numpy().data)  # as bytes, because numpy has no bfloat16
        for step in (self.prepare, self.augment):
            if step is not None:
                digest.update(function_identity(step).encode())
        return digest.hexdigest()

    def had_fingerprint(self, saved: Any) -> bool:
        """Is this the fingerprint that version 0.1.0 made of these data? It took some of the inputs only."""
        return bool(saved == self.fingerprint(most_inputs=4096))


@dataclass(repr=False)
class Dataset:
    """Training and test samples, not yet split among clients."""

    name: str
    x: Any  # Texts, or Tensor [n, ...]; images may be memory-mapped uint8 [n, C, H, W]
    y: Tensor  # [n] classes, or [n, k] numbers to predict
    test: tuple[Any, Tensor] | None = None
    key: np.ndarray | None = None  # [n] the owner of every sample: a writer, a role, a user
    prepare: Prepare | None = None
    augment: Augment | None = None
    classes: int | None = None
    vocabulary: int | None = None
    schema: Schema | None = None  # how a table or a folder of pictures was read; pass it to read other files alike

    def __post_init__(self) -> None:
        if self.classes is None and not self.y.is_floating_point():
            self.classes = int(self.y.max()) + 1

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        tested = "" if self.test is None else f" and {len(self.test[1]):,} for testing"
        kinds = "" if self.classes is None else f", {self.classes} classes"
        return f"Dataset({self.name}: {len(self):,} samples{tested}, {_inputs(self.x)}{kinds})"

    def split(
        self, kind: str | Splitter = "iid", *, clients: int | None = None, seed: int = 0, **options: Any
    ) -> Federation:
        """Splits the samples among clients: iid, quantity, dirichlet_per_class, dirichlet_per_client, beta, shards, by_key.

        kind: one of these names, or the owner of every sample as an array [n], or a function that returns one of these:
        such an array, or a list with the sample numbers of every client. It is called as kind(labels), kind(labels,
        clients) or kind(labels, clients, rng). Owners are sorted, and client i is owner i.
        clients: how many; not needed for an array, nor for a function that takes labels only.

        >>> load("digits").split("dirichlet_per_class", clients=100, concentration=0.1, seed=0)
        >>> load("digits").split(lambda labels: labels % 5)
        """
        kind = spelled(kind) if isinstance(kind, str) else kind
        parts = partition(kind, self.y.numpy(), clients, seed, self.key, **options)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        name = kind if isinstance(kind, str) else "own"
        origin = {"data": self.name, "split": name, "clients": len(parts), "split_seed": seed, **options}
        rest = (self.prepare, self.augment, self.classes, self.vocabulary, self.schema)
        return Federation(self.x, self.y, offsets, np.concatenate(parts), self.test, origin, *rest)


def function_identity(step: Any) -> str:
    """A text that identifies a function in every process: its name, or the values of a dataclass or partial."""
    if hasattr(step, "identity"):
        return str(step.identity)
    if isinstance(step, functools.partial):
        return f"{function_identity(step.func)}{step.args}{step.keywords}"
    if is_dataclass(step):
        return repr(step)
    name = step if hasattr(step, "__qualname__") else type(step)  # otherwise it is an object that can be called
    return f"{name.__module__}.{name.__qualname__}"


def _inputs(x: Any) -> str:
    """What the inputs are, in a few words."""
    if isinstance(x, Tensor):
        return f"inputs {list(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"
    return "texts" if isinstance(x, Texts) else f"{type(x.datasets[0]).__name__} as inputs"


def misplaced(value: Any) -> str:
    """The end of a message, if the value belongs elsewhere; otherwise an empty text."""
    if type(value).__name__ == "DataLoader":
        return "; pass data sets, not loaders, to Federation.from_datasets, for example loader.dataset"
    if isinstance(value, Dataset):
        return "; split it among clients: data.split('iid', clients=10)"
    return "; Federation.from_datasets takes a list of data sets" if is_dataset(value) else ""


def _pair(pair: Any, where: str) -> tuple[Any, Tensor]:
    if hint := misplaced(pair):
        raise ValueError(f"{where}: expected a pair (x, y) of arrays, not {kind_of(pair)}{hint}")
    try:
        x, y = pair
        x, y = x if isinstance(x, Texts) else _strings(x) or _tensor(x), _tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: expected a pair (x, y) of arrays: {error}") from error
    if (isinstance(x, Tensor) and not x.dim()) or not y.dim():
        raise ValueError(f"{where}: expected a pair (x, y) of arrays, not of single numbers")
    if len(x) != len(y):
        raise ValueError(f"{where}: {len(x)} inputs but {len(y)} targets")
    for what, z in (("inputs", x), ("targets", y)):
        check_finite_rows(z, f"{where}: the {what}")
    return x, y


def check_finite_rows(z: Any, where: str) -> None:
    """Raises if a row of z is not finite, and names the first. Otherwise every step of such a client would be dropped."""
    if not isinstance(z, Tensor) or not z.is_floating_point() or bool(z.detach().sum().isfinite()):
        return
    bad = (~z.reshape(len(z), -1).isfinite()).any(1).nonzero().flatten()  # the sum of finite numbers may overflow
    if len(bad):
        raise ValueError(
            f"{where} are not finite in {len(bad)} of {len(z)} rows, the first of them is row {int(bad[0])}; "
            "remove these rows or fill the numbers in"
        )


def _strings(x: Any) -> Texts | None:
    """Texts, if x is a list or an array of strings."""
    if isinstance(x, list | tuple) and x and all(isinstance(z, str) for z in x):
        return Texts.from_strings(x)
    return None


def _tensor(z: Any) -> Tensor:
    """z as a tensor. The memory is shared if torch can do that; it cannot for read-only or reversed arrays."""
    if hasattr(z, "to_numpy"):  # a pandas object: torch would look rows up by the index of the frame
        z = z.to_numpy()
    if isinstance(z, np.ndarray) and (not z.flags.writeable or min(z.strides, default=0) < 0):
        z = z.copy()
    tensor: Tensor = torch.as_tensor(z).detach()
    return tensor.long() if tensor.dtype in UNSIGNED else tensor


def _same_shapes(pair: tuple[Any, Tensor], first: tuple[Any, Tensor], where: str) -> None:
    for what, z, of_first in zip(("samples", "targets"), pair, first, strict=True):
        if isinstance(z, Texts) and isinstance(of_first, Texts):
            continue
        if isinstance(z, Texts) or isinstance(of_first, Texts):
            raise ValueError(f"{where}: either the samples of all clients are texts, or those of none")
        if z.shape[1:] != of_first.shape[1:]:
            theirs = f"those of client 0 have {list(of_first.shape[1:])}"
            raise ValueError(f"{where}: {what} have shape {list(z.shape[1:])}, {theirs}")
