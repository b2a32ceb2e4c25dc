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

from fedkeel.data.partition import partition, spelled

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has almost no operations for them
Prepare = Callable[[Tensor], Tensor]  # stored samples [B, ...] -> what the model takes
Augment = Callable[[Tensor, np.random.Generator], Tensor]  # stored samples [B, ...] -> the same samples, changed at random


@dataclass(frozen=True)
class ClientData:
    """The samples of one client."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass
class Federation:
    """N clients. Client i owns the rows order[offsets[i]:offsets[i + 1]] of x and y.

    Without an order, it owns the rows offsets[i] to offsets[i + 1]. So the data are never copied, not even for a million
    clients.
    """

    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]
    offsets: np.ndarray  # [N + 1]
    order: np.ndarray | None = None  # [n]
    test: tuple[Tensor, Tensor] | None = None
    origin: dict[str, Any] = field(default_factory=dict)  # data, split and its options; empty for arrays that you passed
    prepare: Prepare | None = None  # applied to every batch, in training and evaluation
    augment: Augment | None = None  # applied before `prepare`, and only to the mini-batches of training
    classes: int | None = None  # how many
    vocabulary: int | None = None  # for token ids: how many different ones there are

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
        """A federation from one (x, y) pair of arrays, tensors or pandas objects per client, and an optional test pair."""
        if not isinstance(clients, Iterable):
            raise ValueError(f"clients: expected a list of (x, y) pairs, not {type(clients).__name__}")
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
        x = torch.cat([x for x, _ in pairs])
        y = torch.cat([y for _, y in pairs])
        return cls(x, y, offsets, None, test)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, as the model takes it."""
        one = self.x[:1]
        return tuple((one if self.prepare is None else self.prepare(one)).shape[1:])

    def __getitem__(self, client: int) -> ClientData:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} does not exist: there are {len(self)}")
        return ClientData(*self.take(client, None))

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def rows(self, client: int, numbers: np.ndarray) -> np.ndarray:
        """Sample numbers of a client -> rows of x and y."""
        places: np.ndarray = self.offsets[client] + numbers
        return places if self.order is None else self.order[places]

    def take(self, client: int, numbers: np.ndarray | None) -> tuple[Tensor, Tensor]:
        """The given samples of a client, or all of them."""
        if numbers is None:
            if self.order is None:
                part = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
                return self.x[part], self.y[part]
            numbers = np.arange(self.size(client))
        return self.take_rows(self.rows(client, numbers))

    def take_rows(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(rows)
        return self.x.index_select(0, index), self.y.index_select(0, index)

    def label_counts(self, classes: int) -> np.ndarray:
        """Samples of every class at every client, [N, C]."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        labels = self.y.numpy() if self.order is None else self.y.numpy()[self.order]
        return np.bincount(owner * classes + labels, minlength=len(self) * classes).reshape(len(self), classes)

    def fingerprint(self) -> str:
        """A hash of all labels, of the split, and of up to 8191 inputs at regular distances."""
        digest = hashlib.blake2b(digest_size=16)
        parts: list[Any] = [self.offsets, self.order]
        for x, y in [(self.x, self.y)] + ([] if self.test is None else [self.test]):
            parts += [x[:: max(1, len(x) // 4096)], y]
        for part in parts:
            if part is not None:
                z = torch.as_tensor(part).cpu().contiguous()
                digest.update(f"{z.dtype}{tuple(z.shape)}".encode())
                digest.update(z.reshape(-1).view(torch.uint8).numpy().data)  # as bytes, because numpy has no bfloat16
        for step in (self.prepare, self.augment):
            if step is not None:
                digest.update(_identity(step).encode())
        return digest.hexdigest()


@dataclass
class Dataset:
    """Training and test samples, not yet split among clients."""

    name: str
    x: Tensor  # [n, ...]; images may be memory-mapped uint8 [n, C, H, W]
    y: Tensor  # [n]
    test: tuple[Tensor, Tensor] | None = None
    key: np.ndarray | None = None  # [n] the owner of every sample: a writer, a role, a user
    prepare: Prepare | None = None
    augment: Augment | None = None
    classes: int | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if self.classes is None and not self.y.is_floating_point():
            self.classes = int(self.y.max()) + 1

    def split(self, kind: str = "iid", *, clients: int, seed: int = 0, **options: Any) -> Federation:
        """Splits the samples among clients: iid, quantity, dirichlet_per_class, dirichlet_per_client, beta, shards, by_key.

        >>> load("digits").split("dirichlet_per_class", clients=100, concentration=0.1, seed=0)
        """
        kind = spelled(kind)
        parts = partition(kind, self.y.numpy(), clients, seed, self.key, **options)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        origin = {"data": self.name, "split": kind, "clients": clients, "split_seed": seed, **options}
        rest = (self.prepare, self.augment, self.classes, self.vocabulary)
        return Federation(self.x, self.y, offsets, np.concatenate(parts), self.test, origin, *rest)


def _identity(step: Any) -> str:
    """A text that identifies a function in every process: its name, or the values of a dataclass or partial."""
    if hasattr(step, "identity"):
        return str(step.identity)
    if isinstance(step, functools.partial):
        return f"{_identity(step.func)}{step.args}{step.keywords}"
    if is_dataclass(step):
        return repr(step)
    name = step if hasattr(step, "__qualname__") else type(step)  # otherwise it is an object that can be called
    return f"{name.__module__}.{name.__qualname__}"


def _pair(pair: Any, where: str) -> tuple[Tensor, Tensor]:
    try:
        x, y = (_tensor(z) for z in pair)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: expected a pair (x, y) of arrays: {error}") from error
    if not x.dim() or not y.dim():
        raise ValueError(f"{where}: expected a pair (x, y) of arrays, not of single numbers")
    if len(x) != len(y):
        raise ValueError(f"{where}: {len(x)} inputs but {len(y)} targets")
    return x, y


def _tensor(z: Any) -> Tensor:
    """z as a tensor. The memory is shared if torch can do that; it cannot for read-only or reversed arrays."""
    if hasattr(z, "to_numpy"):  # a pandas object: torch would look rows up by the index of the frame
        z = z.to_numpy()
    if isinstance(z, np.ndarray) and (not z.flags.writeable or min(z.strides, default=0) < 0):
        z = z.copy()
    tensor: Tensor = torch.as_tensor(z).detach()
    return tensor.long() if tensor.dtype in UNSIGNED else tensor


def _same_shapes(pair: tuple[Tensor, Tensor], first: tuple[Tensor, Tensor], where: str) -> None:
    for what, z, of_first in zip(("samples", "targets"), pair, first, strict=True):
        if z.shape[1:] != of_first.shape[1:]:
            theirs = f"those of client 0 have {list(of_first.shape[1:])}"
            raise ValueError(f"{where}: {what} have shape {list(z.shape[1:])}, {theirs}")
