"""How much privacy a run has spent, by the package dp-accounting.

What counts is how the clients of a round are chosen:

- A fixed number of clients, drawn without replacement. Neighbouring federations differ in one client that is replaced, so
  an upload can move a sum by twice the clip. Sampling amplifies privacy.
- Every client by itself with the same probability (`bernoulli`). Neighbours have one client more or less, so the sum moves
  by the clip. Sampling amplifies privacy.
- Anything else: all clients, lists that you give, or absence. Nothing is amplified, and the client that takes part most
  often counts. Neighbours differ in one client that is replaced.

A release is one exchange with noise. A survey and the local steps of its round have the same clients, so k releases of a
round count as one with a noise that is smaller by the square root of k. The warm-up reaches everybody once.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

INSTALL = "privacy needs the package dp-accounting: pip install 'fedkeel[privacy]'"
REPLACE, POISSON, NONE = "fixed", "poisson", "none"


@dataclass(frozen=True)
class Sampling:
    """How the clients of a round are chosen."""

    kind: str  # REPLACE, POISSON or NONE
    N: int
    S: int = 0  # clients of a round, for REPLACE
    q: float = 0.0  # probability of a client, for POISSON

    @property
    def sensitivity(self) -> float:
        """How far one client can move a sum, in units of the clip."""
        return 1.0 if self.kind == POISSON else 2.0


@dataclass
class Accountant:
    """Counts the releases of a run."""

    sampling: Sampling
    noise: float  # standard deviation of the noise, in units of the clip
    delta: float
    rounds: Counter[int] = field(default_factory=Counter)  # releases of a round -> how many such rounds
    clients: Counter[int] = field(default_factory=Counter)  # client -> releases; only if nothing is amplified
    warmup: int = 0  # releases that reach everybody once

    def __post_init__(self) -> None:
        try:
            import dp_accounting  # noqa: F401
        except ImportError:
            raise ImportError(INSTALL) from None

    def spend(self, ids: Iterable[int], releases: int) -> None:
        """A round with these clients has made this many releases."""
        if self.sampling.kind == NONE:
            for client in ids:
                self.clients[client] += releases
        else:
            self.rounds[releases] += 1

    def epsilon(self) -> float:
        """What is spent so far. Infinite without noise."""
        if not self.rounds and not self.clients and not self.warmup:
            return 0.0
        # dp-accounting cannot compute with more noise than this. Less noise gives a larger epsilon, so the bound holds.
        ratio = min(self.noise / self.sampling.sensitivity, 1e3)
        if ratio == 0:
            return math.inf
        if self.sampling.kind == NONE:
            return gaussian(ratio, max(self.clients.values(), default=0) + self.warmup, self.delta)
        total: Any = 0.0
        for releases, count in self.rounds.items():
            total = total + count * _curve(self.sampling, ratio / math.sqrt(releases))
        if self.warmup:
            total = total + self.warmup * _curve(Sampling(NONE, self.sampling.N), ratio)
        return _epsilon(tuple(total), self.delta)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        pairs = {name: [[k, n] for k, n in getattr(self, name).items()] for name in ("rounds", "clients")}
        return {**pairs, "warmup": self.warmup}

    def restore(self, state: dict[str, Any]) -> None:
        self.rounds, self.clients = (Counter(dict(state[name])) for name in ("rounds", "clients"))
        self.warmup = state["warmup"]

    def after(self, ids: Iterable[int], releases: int) -> float:
        """What would be spent after one more round like this."""
        other = Accountant(self.sampling, self.noise, self.delta, self.rounds.copy(), self.clients.copy(), self.warmup)
        other.spend(ids, releases)
        return other.epsilon()


def gaussian(ratio: float, releases: int, delta: float) -> float:
    """The exact epsilon of normal noise that is added several times. ratio: standard deviation by sensitivity."""
    import dp_accounting

    if not releases:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(ratio / math.sqrt(releases), delta))


def noise_for(epsilon: float, planned: Accountant) -> float:
    """The smallest noise, to a thousandth, with which the planned releases spend at most epsilon."""

    def spent(noise: float) -> float:
        return Accountant(planned.sampling, noise, planned.delta, planned.rounds, planned.clients, planned.warmup).epsilon()

    low, high = 0.0, 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise ValueError(f"privacy: epsilon = {epsilon!r} is too small for delta = {planned.delta:g}")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high


@functools.lru_cache(maxsize=64)
def _curve(sampling: Sampling, ratio: float) -> Any:
    """The Renyi divergences of one release, for the accountant's orders. One takes a fifth of a second, so they are kept."""
    import dp_accounting as dp
    from dp_accounting import rdp

    event: Any = dp.GaussianDpEvent(ratio)
    if sampling.kind == REPLACE:
        event = dp.SampledWithoutReplacementDpEvent(sampling.N, sampling.S, event)
    elif sampling.kind == POISSON:
        event = dp.PoissonSampledDpEvent(sampling.q, event)
    relation = dp.NeighboringRelation.REPLACE_ONE if sampling.kind == REPLACE else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    with _quiet():
        accountant.compose(event)
    return accountant._rdp


def _epsilon(curve: tuple[float, ...], delta: float) -> float:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    with _quiet():
        return float(rdp.compute_epsilon(accountant._orders, curve, delta)[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """dp-accounting logs a warning for every order that it leaves out, which happens in ordinary use."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
