"""Ways to deal the samples of one data set out to clients, each deterministic in the seed."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable
from numbers import Integral, Real

import numpy as np

from fedkeel.core.algorithm import nearest

LARGEST = 1e100  # concentration; more is no more even, and the sum of the draws would overflow


def partition(kind: str, labels: np.ndarray, clients: int, seed: int, **options: float) -> list[np.ndarray]:
    """Sample numbers per client; every client gets at least one."""
    if kind not in PARTITIONS:
        raise ValueError(f"split: unknown name {kind!r}{nearest(kind, PARTITIONS)}")
    if not _whole(clients) or not 1 <= clients <= len(labels):
        raise ValueError(f"clients = {clients!r} is not allowed; it must be from 1 to the number of samples, {len(labels)}")
    if not _whole(seed) or seed < 0:
        raise ValueError(f"seed = {seed!r} is not allowed; it must be a whole number >= 0")
    known = set(inspect.signature(PARTITIONS[kind]).parameters) - {"rng", "labels", "clients"}
    for option in options:
        if option not in known:
            raise ValueError(f"split {kind!r}: unknown option {option!r}{nearest(option, known) if known else ''}")
    rng = np.random.default_rng((int(seed), 0x5917))
    return _nobody_empty(PARTITIONS[kind](rng, np.asarray(labels), int(clients), **options))


def iid(rng: np.random.Generator, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """Equal shares of a shuffled data set."""
    return np.array_split(rng.permutation(len(labels)), clients)


def dirichlet_per_class(
    rng: np.random.Generator, labels: np.ndarray, clients: int, concentration: float = 0.5
) -> list[np.ndarray]:
    """Every class is dealt out by its own Dirichlet draw over the clients (GradMA): sizes are unequal."""
    _positive("concentration", concentration)
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.round(np.cumsum(_dirichlet(rng, concentration, clients)) * len(mine)).astype(np.int64)
        owner[mine] = np.searchsorted(bounds, np.arange(len(mine)), side="right").clip(max=clients - 1)
    return _grouped(owner, clients)


def dirichlet_per_client(
    rng: np.random.Generator, labels: np.ndarray, clients: int, concentration: float = 0.5
) -> list[np.ndarray]:
    """Every client has its own Dirichlet prior over the classes (FedLADA): sizes are equal.

    Clients draw their samples in turn, without replacement; a class that is used up is left out of the draw.
    """
    _positive("concentration", concentration)
    names, coded = np.unique(labels, return_inverse=True)
    piles = [rng.permutation(np.flatnonzero(coded == label)) for label in range(len(names))]
    used, left = np.zeros(len(names), dtype=np.int64), np.array([len(pile) for pile in piles])
    priors = np.stack([_dirichlet(rng, concentration, len(names)) for _ in range(clients)])
    sizes = [len(part) for part in np.array_split(np.arange(len(labels)), clients)]
    parts = []
    for prior, size in zip(priors, sizes, strict=True):
        mine: list[np.ndarray] = []
        while size > 0:
            chances = prior * (left > 0)
            # A prior whose classes are all used up falls back on what is left.
            chances = chances / chances.sum() if chances.sum() > 0 else left / left.sum()
            counts = np.minimum(rng.multinomial(size, chances), left)
            mine += [piles[label][used[label] : used[label] + counts[label]] for label in np.flatnonzero(counts)]
            used, left, size = used + counts, left - counts, size - counts.sum()
        parts.append(np.concatenate(mine))
    return parts


def shards(rng: np.random.Generator, labels: np.ndarray, clients: int, per_client: int = 2) -> list[np.ndarray]:
    """The samples sorted by label and cut into equal shards, `per_client` of them to each client (McMahan et al.)."""
    most = len(labels) // clients
    if not _whole(per_client) or not 1 <= per_client <= most:
        raise ValueError(f"per_client = {per_client!r} is not allowed; it must be a whole number from 1 to {most}")
    by_label = rng.permutation(len(labels))
    by_label = by_label[np.argsort(labels[by_label], kind="stable")]
    cuts = np.array_split(by_label, clients * per_client)
    dealt = rng.permutation(len(cuts)).reshape(clients, per_client)
    return [np.concatenate([cuts[shard] for shard in mine]) for mine in dealt]


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "dirichlet_per_class": dirichlet_per_class,
    "dirichlet_per_client": dirichlet_per_client,
    "shards": shards,
}


def _dirichlet(rng: np.random.Generator, concentration: float, size: int) -> np.ndarray:
    draw = rng.dirichlet(np.full(size, concentration))
    # A tiny concentration can underflow to nothing at all: then one entry has everything.
    return draw if np.isfinite(draw).all() and draw.sum() > 0 else np.eye(size)[rng.integers(size)]


def _grouped(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _nobody_empty(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Clients that got nothing take one sample each from those that have most."""
    richest = [(-len(part), client) for client, part in enumerate(parts) if len(part) > 1]
    heapq.heapify(richest)
    for client, part in enumerate(parts):
        if len(part) == 0:
            size, giver = heapq.heappop(richest)
            parts[client], parts[giver] = parts[giver][-1:], parts[giver][:-1]
            heapq.heappush(richest, (size + 1, giver))
    return parts


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= LARGEST:
        raise ValueError(f"{name} = {value!r} is not allowed; it must be > 0 and at most {LARGEST:g}")


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
