"""Means of uploads that a few bad clients cannot move far.

A rule either weighs the clients, by the inner products of their whole uploads (Krum, geometric median, norm bounding,
centred clipping), or it looks at each coordinate alone (median, trimmed mean). The first kind finds one set of weights for
all fields of an upload.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkeel.channel.words import Condition
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import weighted_sum

BLOCK = 16_384  # columns sorted or multiplied at a time, so that they stay in the cache
TINY = 1e-12  # keeps the geometric median from dividing by the distance zero


@dataclass(frozen=True)
class Aggregation(Condition):
    """Base of all rules."""

    whole: ClassVar[bool] = False  # does it weigh whole uploads? Then it needs their inner products.

    @property
    def neutral(self) -> bool:
        """Is it the ordinary mean?"""
        return False

    def weights(self, gram: Tensor, p: Tensor) -> Tensor:
        """New weights of the clients, [S] float64. gram: [S, S] inner products of uploads.  p: [S] their old weights."""
        return p

    def mean(self, p: Tensor, z: Tensor) -> Tensor:
        """The mean of one field, z [S, ...] -> [...]."""
        return weighted_sum(p, z)


@dataclass(frozen=True)
class Mean(Aggregation):
    """The weighted mean of all clients."""

    word = "mean"

    @property
    def neutral(self) -> bool:
        return True


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The mean of each coordinate without its largest and its smallest values (Yin et al. 2018)."""

    word = "trimmed"
    share: float = hp(0.1, "part of the clients that is left out at each end", least=0, below=0.5)

    @property
    def neutral(self) -> bool:
        return self.share == 0

    def mean(self, p: Tensor, z: Tensor) -> Tensor:
        return middle(z, int(self.share * len(z)))


@dataclass(frozen=True)
class Median(Aggregation):
    """The median of each coordinate (Yin et al. 2018)."""

    word = "median"

    def mean(self, p: Tensor, z: Tensor) -> Tensor:
        return middle(z, (len(z) - 1) // 2)


@dataclass(frozen=True)
class Krum(Aggregation):
    """The one upload that is closest to its neighbours (Blanchard et al. 2017)."""

    word = "krum"
    whole = True
    share: float = hp(0.2, "part of the clients that may be bad", least=0, below=0.5)

    def weights(self, gram: Tensor, p: Tensor) -> Tensor:
        return _chosen(gram, self.share, 1)


@dataclass(frozen=True)
class MultiKrum(Aggregation):
    """The mean of the uploads that are closest to their neighbours, without those that may be bad (Blanchard et al.)."""

    word = "multi-krum"
    whole = True
    share: float = hp(0.2, "part of the clients that may be bad", least=0, below=0.5)

    def weights(self, gram: Tensor, p: Tensor) -> Tensor:
        S = len(p)
        return _chosen(gram, self.share, S - int(self.share * S))


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """The point with the smallest mean distance to all uploads (RFA, Pillutla et al. 2022), by Weiszfeld's iteration."""

    word = "geometric-median"
    whole = True
    iterations: int = hp(100, "at most this many steps; it stops as soon as nothing changes", least=1)

    def weights(self, gram: Tensor, p: Tensor) -> Tensor:
        w = p.clone()
        small = TINY * float(gram.diagonal().max().clamp_min(TINY)) ** 0.5
        for _ in range(self.iterations):
            new = p / _distances(gram, w).clamp_min(small)
            new /= new.sum()
            if float((new - w).abs().max()) < 1e-12:
                break
            w = new
        return w


@dataclass(frozen=True)
class NormBound(Aggregation):
    """The mean of uploads that are scaled down to a largest norm (Sun et al. 2019)."""

    word = "norm"
    whole = True
    bound: float = hp(1.0, "largest norm of an upload", above=0)

    def weights(self, gram: Tensor, p: Tensor) -> Tensor:
        return p * (self.bound / gram.diagonal().clamp_min(1e-300).sqrt()).clamp_max(1.0)


@dataclass(frozen=True)
class CentredClipping(Aggregation):
    """The mean of uploads after each is moved to within `radius` of the present estimate (Karimireddy et al. 2021).

    Differs from the paper: the estimate starts at zero in every round, not at the result of the last round.
    """

    word = "centred-clipping"
    whole = True
    radius: float = hp(1.0, "largest distance of an upload from the estimate", above=0)
    iterations: int = hp(5, "how often the estimate is improved", least=1)

    def weights(self, gram: Tensor, p: Tensor) -> Tensor:
        w = torch.zeros_like(p)  # the estimate is always a weighted sum of the uploads
        for _ in range(self.iterations):
            kept = p * (self.radius / _distances(gram, w).clamp_min(1e-300)).clamp_max(1.0)
            w = w * (1 - kept.sum()) + kept
        return w


KINDS: list[type[Aggregation]] = [
    Mean,
    Median,
    TrimmedMean,
    Krum,
    MultiKrum,
    GeometricMedian,
    NormBound,
    CentredClipping,
]


def middle(z: Tensor, cut: int) -> Tensor:
    """The mean of each coordinate without its `cut` largest and smallest values, z [S, ...] -> [...]."""
    S, rows = len(z), z.reshape(len(z), -1)
    out, pairs = torch.empty_like(rows[0]), list(exchanges(S))
    for total, part in zip(torch.split(out, BLOCK), torch.split(rows, BLOCK, 1), strict=True):
        total.copy_(torch.stack(_sorted(part, pairs)[cut : S - cut]).mean(0))
    return out.view(z.shape[1:])


def _sorted(part: Tensor, pairs: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The rows of `part` after each column is sorted, by exchanging rows in these pairs. Torch's sort takes ten times as
    long for so short columns."""
    rows = list(part.clone())
    spare = torch.empty_like(rows[0])
    for a, b in pairs:
        torch.minimum(rows[a], rows[b], out=spare)
        torch.maximum(rows[a], rows[b], out=rows[b])
        rows[a], spare = spare, rows[a]
    return rows


def exchanges(n: int) -> Iterator[tuple[int, int]]:
    """The pairs of Batcher's sorting network for n numbers: exchanging each pair that is out of order sorts them."""
    size = 1
    while size < n:
        step = size
        while step:
            for start in range(step % size, n - step, 2 * step):
                for i in range(start, min(start + step, n - step)):
                    if i // (2 * size) == (i + step) // (2 * size):
                        yield i, i + step
            step //= 2
        size *= 2


def inner_products(fields: Sequence[Tensor]) -> Tensor:
    """[S, S] float64: the inner products of whole uploads. fields: [S, ...] each."""
    S = len(fields[0])
    gram = torch.zeros(S, S, dtype=torch.float64)
    for z in fields:
        for part in torch.split(z.reshape(S, -1), BLOCK, 1):
            wide = part.double()
            gram += (wide @ wide.T).cpu()
    return gram


def _distances(gram: Tensor, w: Tensor) -> Tensor:
    """[S] the distance of every upload from sum_i w_i upload_i."""
    products = gram @ w
    return (gram.diagonal() - 2 * products + w @ products).clamp_min(0).sqrt()


def _chosen(gram: Tensor, share: float, keep: int) -> Tensor:
    """Weights that choose the `keep` uploads with the smallest sums of squared distances to their closest neighbours."""
    S = len(gram)
    norms = gram.diagonal()
    squares = (norms[:, None] + norms[None, :] - 2 * gram).clamp_min(0)
    squares.fill_diagonal_(math.inf)
    neighbours = max(1, min(S - 1, S - int(share * S) - 2))
    scores = squares.sort(1).values[:, :neighbours].sum(1)
    weights = torch.zeros(S, dtype=torch.float64)
    weights[scores.argsort(stable=True)[:keep]] = 1 / keep
    return weights
