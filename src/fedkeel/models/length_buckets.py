"""Reads short texts apart from long ones, so that a batch has less padding."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

PADDING = 0  # the token id that fills short texts
PASS = 128  # tokens: what a forward and backward pass costs beside its tokens, about, for small transformers and LSTMs
CUTS = 32  # the most places at which a batch is cut into buckets


def in_buckets(read: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """read(tokens) for texts [n, L] whose ends are filled with padding -> [n, ...].

    The texts are sorted by length and cut into buckets, and `read` sees one bucket at a time, without the padding that none
    of its texts needs. Which texts share a bucket depends on the batch alone, so every engine has the same bits.

    read: must treat every text for itself and ignore padding. Then the result is the same up to rounding.
    """
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    lengths, order = ((tokens != PADDING) * places).amax(1).clamp_min(1).sort(stable=True)
    longest: list[int] = lengths.tolist()
    cuts = bucket_cuts(longest)
    if len(cuts) == 2:
        return read(tokens[:, : longest[-1]])
    parts = [read(tokens[order[start:stop], : longest[stop - 1]]) for start, stop in pairwise(cuts)]
    return torch.cat(parts).index_select(0, order.argsort())


def bucket_cuts(lengths: list[int]) -> list[int]:
    """Where to cut texts with these lengths, which increase, so that all passes together cost least: [0, ..., n].

    A pass costs `PASS` and, for each of its texts, the length of the longest.
    """
    n = len(lengths)
    places = [*range(0, n, -(-n // CUTS)), n]
    cost, before = [0], [0]  # of the cheapest cuts up to each place, and the place of the last cut before it
    for stop in range(1, len(places)):
        longest = lengths[places[stop] - 1]
        tries = [cost[start] + PASS + (places[stop] - places[start]) * longest for start in range(stop)]
        cost.append(min(tries))
        before.append(tries.index(cost[-1]))
    at, cuts = len(places) - 1, [n]
    while at:
        at = before[at]
        cuts.append(places[at])
    return cuts[::-1]
