"""Validation data: a part of every client's samples that the run never trains on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fedkeel.data.federation import Federation
from fedkeel.engine import seeding
from fedkeel.errors import refuse


def held_out_sizes(sizes: np.ndarray, share: float) -> np.ndarray:
    """How many samples each client holds out, [N]. Every client keeps at least one sample to train on."""
    found: np.ndarray = np.minimum(np.rint(share * sizes), sizes - 1).astype(np.int64)
    return found


@dataclass(frozen=True)
class HeldOut:
    """A federation in two parts with the same clients and the same arrays."""

    training: Federation
    rows: np.ndarray  # [n] rows of the arrays that are held out, client by client
    offsets: np.ndarray  # [N + 1] client i has rows[offsets[i]:offsets[i + 1]], which may be none

    @property
    def clients(self) -> np.ndarray:
        """The clients that hold out at least one sample."""
        return np.flatnonzero(np.diff(self.offsets))

    def rows_of(self, client: int) -> np.ndarray:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]


def hold_out(fed: Federation, share: float, seed: int) -> HeldOut:
    """Draws the held-out samples of every client. Raises if there are none."""
    held = in_two_parts(fed, share, seed)
    if not len(held.rows):
        raise refuse("validation", share, f"larger: no client has enough samples (the largest has {fed.sizes.max()})")
    return held


def in_two_parts(fed: Federation, share: float, seed: int) -> HeldOut:
    """The held-out samples of a client depend on the seed, its number and its number of samples only. So a site that knows
    no other client holds out the same ones."""
    counts = held_out_sizes(fed.sizes, share)
    kept: list[np.ndarray] = []
    held: list[np.ndarray] = []
    for client, count in enumerate(counts.tolist()):
        n = fed.size(client)
        order = seeding.generator(seed, seeding.VALIDATION, 0, client).permutation(n)
        for numbers, parts in ((order[count:], kept), (order[:count], held)):
            parts.append(fed.rows(client, np.sort(numbers)))
    offsets = np.concatenate([[0], np.cumsum(fed.sizes - counts)]).astype(np.int64)
    training = dataclasses.replace(fed, offsets=offsets, order=np.concatenate(kept))
    return HeldOut(training, np.concatenate(held), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
