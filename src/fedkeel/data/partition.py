"""Ways to split the samples of one data set among clients. The seed decides every split."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedkeel.errors import nearest

SIZES = ("equal", "unequal")
WITHOUT_LABELS = ("iid", "quantity", "by_key")  # kinds that do not use the labels, so targets of any kind are allowed
LARGEST = 1e100  # concentration: a larger one is not more even, and the sum of the draws would overflow


Splitter = Sequence[Any] | np.ndarray | Callable[..., Any]  # the owner of every sample, or a function that returns it


def partition(
    kind: str | Splitter,
    labels: np.ndarray,
    clients: int | None,
    seed: int,
    key: np.ndarray | None = None,
    **options: float | str,
) -> list[np.ndarray]:
    """Sample numbers per client. Every client gets at least one.  key: the owner of every sample, for `by_key`."""
    if not isinstance(kind, str):
        if options:
            raise ValueError(f"split: a function or an array of owners takes no options, such as {next(iter(options))!r}")
        return _own_split(kind, np.asarray(labels), clients, seed)
    if kind not in PARTITIONS:
        raise ValueError(f"split: unknown name {kind!r}{nearest(kind, PARTITIONS)}")
    labels = np.asarray(labels)
    if kind not in WITHOUT_LABELS:
        _classes(kind, labels)
    if clients is None or not _whole(clients) or not 1 <= clients <= len(labels):
        raise ValueError(f"clients = {clients!r} is not allowed; it must be from 1 to the number of samples, {len(labels)}")
    if not _whole(seed) or seed < 0:
        raise ValueError(f"seed = {seed!r} is not allowed; it must be a whole number >= 0")
    known = set(inspect.signature(PARTITIONS[kind]).parameters) - {"rng", "labels", "clients", "key"}
    for option in options:
        if option not in known:
            raise ValueError(f"split {kind!r}: unknown option {option!r}{nearest(option, known) if known else ''}")
    rng = np.random.default_rng((int(seed), 0x5917))
    if kind == "by_key":
        return by_key(rng, labels, int(clients), key)
    return _nobody_empty(PARTITIONS[kind](rng, labels, int(clients), **options))


def _own_split(kind: Splitter, labels: np.ndarray, clients: int | None, seed: int) -> list[np.ndarray]:
    """The split that the user's array of owners describes, or what the user's function returns."""
    if callable(kind):
        rng = np.random.default_rng((int(seed), 0x5917))
        needed = [
            p for p in inspect.signature(kind).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if not 1 <= len(needed) <= 3:
            raise ValueError("split: the function must take (labels), (labels, clients) or (labels, clients, rng)")
        kind = kind(*(labels, clients, rng)[: len(needed)])
        if isinstance(kind, list | tuple) and len(kind) and all(np.ndim(part) == 1 for part in kind):
            return _checked_parts([np.asarray(part) for part in kind], len(labels), clients)
    if kind is None:
        raise ValueError("split: expected a name, not NoneType")
    owner = np.asarray(kind)
    if owner.shape != (len(labels),):
        raise ValueError(f"split: expected the owner of each of the {len(labels)} samples, not an array {list(owner.shape)}")
    names, number = np.unique(owner, return_inverse=True)
    if clients is not None and clients != len(names):
        raise ValueError(f"clients = {clients!r} is not allowed; there are {len(names)} different owners")
    return _grouped(number, len(names))


def _checked_parts(parts: list[np.ndarray], samples: int, clients: int | None) -> list[np.ndarray]:
    """The sample numbers of every client, as a function of the user returned them."""
    if clients is not None and clients != len(parts):
        raise ValueError(f"clients = {clients!r} is not allowed; the function of the split returned {len(parts)} clients")
    for i, part in enumerate(parts):
        if not len(part) or not np.issubdtype(part.dtype, np.integer) or part.min() < 0 or part.max() >= samples:
            raise ValueError(f"split: client {i} must have sample numbers from 0 to {samples - 1}, at least one")
    used = np.concatenate(parts)
    if len(np.unique(used)) < len(used):
        raise ValueError("split: a sample belongs to several clients, or twice to one; it must belong to one at most")
    return [part.astype(np.int64) for part in parts]


def iid(rng: np.random.Generator, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """Equal shares of a shuffled data set."""
    return np.array_split(rng.permutation(len(labels)), clients)


def quantity(rng: np.random.Generator, labels: np.ndarray, clients: int, concentration: float = 0.5) -> list[np.ndarray]:
    """Sizes are in proportion to a Dirichlet draw. All clients have the same label frequencies on average."""
    _positive("concentration", concentration)
    sizes = _rounded(_dirichlet(rng, concentration, clients), len(labels))
    return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


def dirichlet_per_class(
    rng: np.random.Generator, labels: np.ndarray, clients: int, concentration: float = 0.5, sizes: str = "unequal"
) -> list[np.ndarray]:
    """Every class is dealt out by its own Dirichlet draw over the clients (GradMA).

    sizes: with "unequal" the draws decide how many samples a client gets. With "equal" they only decide how likely a class
    is at a client; then the last clients are more one-sided than the rest, as in `dirichlet_per_client`.
    """
    _positive("concentration", concentration)
    _one_of("sizes", sizes, SIZES)
    piles = _piles(rng, labels) if sizes == "equal" else _by_label(labels)
    if sizes == "equal":
        shares = np.stack([len(pile) * _dirichlet(rng, concentration, clients) for pile in piles], axis=1)  # [N, C]
        return _dealt(rng, piles, shares, _equal(len(labels), clients))
    owner = np.empty(len(labels), dtype=np.int64)
    for pile in piles:
        mine = rng.permutation(pile)
        bounds = np.round(np.cumsum(_dirichlet(rng, concentration, clients)) * len(mine)).astype(np.int64)
        owner[mine] = np.searchsorted(bounds, np.arange(len(mine)), side="right").clip(max=clients - 1)
    return _grouped(owner, clients)


def dirichlet_per_client(
    rng: np.random.Generator, labels: np.ndarray, clients: int, concentration: float = 0.5, sizes: str = "equal"
) -> list[np.ndarray]:
    """Every client has its own Dirichlet prior over the classes (FedLADA).

    sizes: "equal" or "unequal". With "unequal" all ways to divide the samples among the clients are equally likely.

    Clients draw one after the other and without replacement. So the last tenth gets what is left, which is further from
    their priors and more one-sided. At concentration 1, with 50,000 samples of 10 classes for 100 clients, clients 0-79
    are 0.05 from their priors and 0.35 from uniform (total variation), clients 90-99 0.42 and 0.52.
    """
    _positive("concentration", concentration)
    _one_of("sizes", sizes, SIZES)
    piles = _piles(rng, labels)
    priors = np.stack([_dirichlet(rng, concentration, len(piles)) for _ in range(clients)])
    if sizes == "equal":
        return _dealt(rng, piles, priors, _equal(len(labels), clients))
    return _dealt(rng, piles, priors, _rounded(_dirichlet(rng, 1.0, clients), len(labels)))


def beta(
    rng: np.random.Generator, labels: np.ndarray, clients: int, beta_a: float = 2.0, beta_b: float = 5.0
) -> list[np.ndarray]:
    """Two classes: a client's part of the second is in proportion to a Beta(a, b) draw, of the first to 1 minus it.

    All samples are used. If the second class is as frequent in the data set as the mean of the Beta distribution, the draw
    is its share at the client. PAdaMFed splits IMDB by Beta(2, 5) and does not say how.
    """
    _positive("beta_a", beta_a)
    _positive("beta_b", beta_b)
    piles = _piles(rng, labels)
    if len(piles) != 2:
        raise ValueError(f"split: 'beta' is for two classes, these data have {len(piles)}")
    draw = rng.beta(beta_a, beta_b, clients)
    owner = np.empty(len(labels), dtype=np.int64)
    for pile, shares in zip(piles, (1 - draw, draw), strict=True):
        owner[pile] = np.repeat(np.arange(clients), _rounded(shares, len(pile)))
    return _grouped(owner, clients)


def by_key(rng: np.random.Generator, labels: np.ndarray, clients: int, key: np.ndarray | None) -> list[np.ndarray]:
    """Every client gets the samples of one owner. With fewer clients than owners, a client gets several owners."""
    if key is None:
        raise ValueError("split: 'by_key' needs data whose samples have owners; these have none")
    if len(key) != len(labels):
        raise ValueError(f"key: {len(key)} owners but {len(labels)} samples")
    names, owner = np.unique(key, return_inverse=True)
    if clients > len(names):
        raise ValueError(f"clients = {clients} is not allowed; it must be from 1 to the number of owners, {len(names)}")
    if clients == len(names):  # client i is owner i
        return _grouped(owner, clients)
    client = np.empty(len(names), dtype=np.int64)
    client[rng.permutation(len(names))] = np.arange(len(names)) % clients
    return _grouped(client[owner], clients)


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


ALIASES = {"dirichlet": "dirichlet_per_class", "natural": "by_key", "pathological": "shards"}  # names of other libraries


def spelled(kind: str) -> str:
    """The split as it is called here: names are not case-sensitive."""
    plain = kind.lower().replace("-", "_")
    return ALIASES.get(plain, plain if plain in PARTITIONS else kind)


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "quantity": quantity,
    "dirichlet_per_class": dirichlet_per_class,
    "dirichlet_per_client": dirichlet_per_client,
    "beta": beta,
    "shards": shards,
    "by_key": by_key,
}


def _by_label(labels: np.ndarray) -> list[np.ndarray]:
    """The samples of every label that occurs, each in increasing order."""
    counts = np.unique(labels, return_counts=True)[1]
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


def _piles(rng: np.random.Generator, labels: np.ndarray) -> list[np.ndarray]:
    """The samples of every label, shuffled."""
    return [rng.permutation(pile) for pile in _by_label(labels)]


def _dealt(rng: np.random.Generator, piles: list[np.ndarray], chances: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Clients draw their samples one after the other, without replacement. Nothing is drawn from an empty pile.

    chances: [N, C], how likely each client draws from each pile.  sizes: [N].
    """
    used, left = np.zeros(len(piles), dtype=np.int64), np.array([len(pile) for pile in piles])
    parts = []
    for prior, size in zip(chances, sizes, strict=True):
        mine: list[np.ndarray] = [piles[0][:0]]
        while size > 0:
            p = prior * (left > 0)
            # If all classes of the prior are used up, the client draws from what is left.
            p = p / p.sum() if p.sum() > 0 else left / left.sum()
            counts = np.minimum(rng.multinomial(size, p), left)
            mine += [piles[label][used[label] : used[label] + counts[label]] for label in np.flatnonzero(counts)]
            used, left, size = used + counts, left - counts, size - counts.sum()
        parts.append(np.concatenate(mine))
    return parts


def _equal(samples: int, clients: int) -> np.ndarray:
    """Sizes that differ by at most one, the larger ones first."""
    return samples // clients + (np.arange(clients) < samples % clients)


def _rounded(shares: np.ndarray, samples: int) -> np.ndarray:
    """Whole numbers in these proportions that sum to the number of samples."""
    if not np.sum(shares) > 0:
        return _equal(samples, len(shares))
    return np.diff(np.round(np.cumsum(shares) / np.sum(shares) * samples).astype(np.int64), prepend=0)


def _dirichlet(rng: np.random.Generator, concentration: float, size: int) -> np.ndarray:
    draw = rng.dirichlet(np.full(size, concentration))
    # With a tiny concentration all entries may underflow to 0. Then one entry gets everything.
    return draw if np.isfinite(draw).all() and draw.sum() > 0 else np.eye(size)[rng.integers(size)]


def _grouped(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _nobody_empty(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Clients without samples take one each from the clients with most samples."""
    richest = [(-len(part), client) for client, part in enumerate(parts) if len(part) > 1]
    heapq.heapify(richest)
    for client, part in enumerate(parts):
        if len(part) == 0:
            size, giver = heapq.heappop(richest)
            parts[client], parts[giver] = parts[giver][-1:], parts[giver][:-1]
            heapq.heappush(richest, (size + 1, giver))
    return parts


def _classes(kind: str, labels: np.ndarray) -> None:
    if labels.ndim != 1 or np.issubdtype(labels.dtype, np.floating):
        theirs = f"targets of {labels.dtype} {list(labels.shape[1:])}"
        any_target = f"{', '.join(WITHOUT_LABELS[:-1])} and {WITHOUT_LABELS[-1]} take any target"
        raise ValueError(f"split: {kind!r} needs one class, a whole number, per sample, not {theirs}; {any_target}")


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= LARGEST:
        raise ValueError(f"{name} = {value!r} is not allowed; it must be > 0 and at most {LARGEST:g}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value!r} is not allowed; it must be {' or '.join(map(repr, allowed))}")


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
