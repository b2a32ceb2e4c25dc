"""Uploads in fewer bits. What a client could not send is added to its next upload (error feedback).

An uplink has at most two steps. The first chooses what to send: the largest numbers (TopK), random ones (RandK) or matrices
of low rank (LowRank). The second says how many bits a number takes (Quantize, Sign). LowRank has no second step: coarse
factors may make the error larger than the vector. No other uplink can do that, so error feedback stays bounded.
`link.py` puts steps together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedkeel.channel.words import Condition
from fedkeel.core.flat import Layers
from fedkeel.core.hyperparameters import hp

SAMPLE = 4096  # numbers whose sizes say which numbers of a vector are large
Generators = Sequence[torch.Generator]  # one per client


class Reduced(NamedTuple):
    """What is sent of a field of S clients."""

    values: Tensor  # [S, k]
    places: Tensor | None  # [S, k] the places of the values, if they are sent, too
    back: Callable[[Tensor], Tensor]  # [S, k] -> [S, d]


@dataclass(frozen=True)
class Compressor(Condition):
    """Base of all steps."""

    chooses: ClassVar[bool] = False  # does it choose what to send? Otherwise it says how many bits a number takes.


@dataclass(frozen=True)
class Chooser(Compressor):
    """A step that chooses what to send."""

    chooses = True

    @property
    def neutral(self) -> bool:
        return False

    def count(self, layers: Layers) -> int:
        """How many numbers are sent of a vector [d]."""
        raise NotImplementedError

    def reduce(self, v: Tensor, layers: Layers, rngs: Generators) -> Reduced:
        """v: [S, d]."""
        raise NotImplementedError

    sends_places: ClassVar[bool] = False


@dataclass(frozen=True)
class _Share(Chooser):
    share: float = hp(0.01, "part of the numbers that is sent", above=0, most=1)

    @property
    def neutral(self) -> bool:
        return self.share == 1

    def count(self, layers: Layers) -> int:
        d = sum(layers.sizes)
        return min(d, max(1, round(self.share * d)))

    def reduce(self, v: Tensor, layers: Layers, rngs: Generators) -> Reduced:
        index = self.places(v, self.count(layers), rngs)
        return Reduced(v.gather(1, index), index if self.sends_places else None, scattered(v.shape[1], index))

    def places(self, v: Tensor, k: int, rngs: Generators) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(_Share):
    """The largest numbers, with their places."""

    word = "topk"
    sends_places = True

    def places(self, v: Tensor, k: int, rngs: Generators) -> Tensor:
        # One row after the other: torch takes twice as long for all at once.
        return torch.stack([largest(row.abs(), k) for row in v])


@dataclass(frozen=True)
class RandK(_Share):
    """Random numbers. Client and server know their places from the seed, so only the numbers travel."""

    word = "randk"

    def places(self, v: Tensor, k: int, rngs: Generators) -> Tensor:
        d = v.shape[1]
        rows = [torch.randperm(d, generator=rng)[:k].sort().values for rng in rngs]
        return torch.stack(rows).to(v.device)


@dataclass(frozen=True)
class LowRank(Chooser):
    """Two thin factors of every matrix, by torch.svd_lowrank. Vectors and small matrices are sent as they are."""

    word = "lowrank"
    rank: int = hp(2, "rank of the factors", least=1)

    def _matrix(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """Rows and columns of a layer, if factors are smaller than it."""
        if len(shape) < 2:
            return None
        m, n = shape[0], math.prod(shape[1:])
        return (m, n) if self.rank < min(m, n) and self.rank * (m + n) < m * n else None

    def count(self, layers: Layers) -> int:
        sizes = [self._matrix(shape) for shape in layers.shapes]
        return sum(size if mn is None else self.rank * sum(mn) for size, mn in zip(layers.sizes, sizes, strict=True))

    def reduce(self, v: Tensor, layers: Layers, rngs: Generators) -> Reduced:
        rows = []
        for row, rng in zip(v, rngs, strict=True):
            with torch.random.fork_rng(devices=[]):  # torch.svd_lowrank draws from the global generator
                torch.manual_seed(rng.initial_seed())
                rows.append(torch.cat([self._factors(z, shape) for z, shape in _parts(row, layers)]))
        return Reduced(torch.stack(rows), None, lambda values: torch.stack([self._product(z, layers) for z in values]))

    def _factors(self, z: Tensor, shape: Sequence[int]) -> Tensor:
        if (mn := self._matrix(shape)) is None:
            return z
        # BLAS may round differently for another alignment, so every matrix starts where torch allocates it.
        u, s, w = torch.svd_lowrank(z.clone().view(mn), q=self.rank)
        return torch.cat([(u * s).reshape(-1), w.reshape(-1)])

    def _product(self, values: Tensor, layers: Layers) -> Tensor:
        parts, start = [], 0
        for size, shape in zip(layers.sizes, layers.shapes, strict=True):
            if (mn := self._matrix(shape)) is None:
                parts.append(values[start : start + size])
                start += size
                continue
            m, n = mn
            u, w = values[start : start + (m + n) * self.rank].view(-1, self.rank).split([m, n])
            parts.append((u.clone() @ w.clone().T).reshape(-1))
            start += (m + n) * self.rank
        return torch.cat(parts)


@dataclass(frozen=True)
class Coder(Compressor):
    """A step that says how many bits a number takes. Beside them, one float of 32 bits travels: the scale."""

    @property
    def neutral(self) -> bool:
        return False

    @property
    def width(self) -> int:
        """Bits of a number."""
        raise NotImplementedError

    def codes(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """values [S, k] -> (whole numbers from 0 to 2**width - 1, [S, k]; scales [S, 1] float32)."""
        raise NotImplementedError

    def values(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers that codes mean, [S, k]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Quantize(Coder):
    """Numbers on an even grid from minus to plus the largest, rounded to the nearest."""

    word = "quantize"
    bits: int = hp(8, "bits of a number", least=2, most=16)

    @property
    def width(self) -> int:
        return self.bits

    @property
    def _levels(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def codes(self, values: Tensor) -> tuple[Tensor, Tensor]:
        scale = (values.abs().amax(1, keepdim=True) / self._levels).float()
        codes = (values / scale.clamp_min(torch.finfo(torch.float32).tiny).to(values.dtype)).round_()
        return codes.clamp_(-self._levels, self._levels).add_(self._levels), scale

    def values(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return (codes.to(dtype) - self._levels) * scale.to(dtype)


@dataclass(frozen=True)
class Sign(Coder):
    """The signs, times the mean size of the numbers."""

    word = "sign"

    @property
    def width(self) -> int:
        return 1

    def codes(self, values: Tensor) -> tuple[Tensor, Tensor]:
        # Row by row: torch may add up the numbers of one row and of many in another order, and so round differently.
        sizes = torch.stack([row.abs().mean() for row in values])
        return (values >= 0).to(values.dtype), sizes[:, None].float()

    def values(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return (2 * codes.to(dtype) - 1) * scale.to(dtype)


KINDS: list[type[Compressor]] = [TopK, RandK, LowRank, Quantize, Sign]


def largest(sizes: Tensor, k: int) -> Tensor:
    """The places of the k largest numbers, in increasing order. sizes: [d], not negative."""
    d = len(sizes)
    if 8 * k < d and d > 8 * SAMPLE:
        # A sample shows from which size on there are about twice as many numbers. The k largest are among these.
        sample = sizes[:: d // SAMPLE]
        few = (sizes >= sample.topk(max(32, 2 * k * len(sample) // d)).values[-1]).nonzero().flatten()
        if len(few) >= k:
            return few[sizes[few].topk(k, sorted=False).indices].sort().values
    return sizes.topk(k, sorted=False).indices.sort().values


def scattered(d: int, index: Tensor) -> Callable[[Tensor], Tensor]:
    """What turns values [S, k] with these places into vectors [S, d]."""
    return lambda values: values.new_zeros(len(values), d).scatter_(1, index, values)


def _parts(row: Tensor, layers: Layers) -> list[tuple[Tensor, Sequence[int]]]:
    return list(zip(row.split_with_sizes(layers.sizes), layers.shapes, strict=True))
