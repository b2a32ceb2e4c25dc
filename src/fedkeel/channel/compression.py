"""Uploads in fewer bits. What a client could not send is added to its next upload (error feedback).

An uplink has at most two steps. The first chooses what to send: the largest numbers (TopK), random ones (RandK) or matrices
of low rank (LowRank). The second says how many bits a number takes (Quantize, Sign). LowRank has no second step: coarse
factors may make the error larger than the vector. No other uplink can do that, so error feedback stays bounded.

`Link.send` does in a simulation what `pack` and `unpack` do with real bytes, with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkeel.channel.words import Condition
from fedkeel.core.flat import Layers
from fedkeel.core.hyperparameters import hp

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
        return Reduced(v.gather(1, index), index if self.sends_places else None, _scattered(v.shape[1], index))

    def places(self, v: Tensor, k: int, rngs: Generators) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(_Share):
    """The largest numbers, with their places."""

    word = "topk"
    sends_places = True

    def places(self, v: Tensor, k: int, rngs: Generators) -> Tensor:
        # One row after the other: torch takes twice as long for all at once.
        return torch.stack([row.topk(k, sorted=False).indices.sort().values for row in v.abs()])


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
        u, s, w = torch.svd_lowrank(z.view(mn), q=self.rank)
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
            parts.append((u @ w.T).reshape(-1))
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
        return (values >= 0).to(values.dtype), values.abs().mean(1, keepdim=True).float()

    def values(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return (2 * codes.to(dtype) - 1) * scale.to(dtype)


KINDS: list[type[Compressor]] = [TopK, RandK, LowRank, Quantize, Sign]


class Link:
    """The steps of an uplink or of the downlink, for the vectors of a model with these layers."""

    def __init__(self, steps: Sequence[Condition], layers: Layers) -> None:
        choosers = [step for step in steps if isinstance(step, Chooser)]
        coders = [step for step in steps if isinstance(step, Coder)]
        check_order(steps)
        self.chooser, self.coder = next(iter(choosers), None), next(iter(coders), None)
        self.layers, self.d = layers, sum(layers.sizes)
        if self.chooser is not None and self.chooser.neutral:
            self.chooser = None
        self.neutral = self.chooser is None and self.coder is None

    def send(self, v: Tensor, rngs: Generators) -> Tensor:
        """v [S, d] as the server gets it."""
        reduced = self._reduced(v, rngs)
        values = reduced.values
        if self.coder is not None:
            values = self.coder.values(*self.coder.codes(values), v.dtype)
        return reduced.back(values)

    def record(self, down: Any) -> Any:
        """What clients get of the server's record, on a downlink. Vectors as long as the model are compressed."""
        return type(down)(*(self.send(z[None], ())[0] if z.shape == (self.d,) else z for z in down))

    def _reduced(self, v: Tensor, rngs: Generators) -> Reduced:
        if self.chooser is None:
            return Reduced(v, None, lambda values: values)
        return self.chooser.reduce(v, self.layers, rngs)

    # Bytes ----------------------------------------------------------------------------------------------------------

    @property
    def _k(self) -> int:
        return self.d if self.chooser is None else self.chooser.count(self.layers)

    @property
    def _place_bits(self) -> int:
        """Bits of one place; 0: no places travel; 1: one bit for every number of the vector, if that is shorter."""
        if self.chooser is None or not self.chooser.sends_places:
            return 0
        wide = max(1, (self.d - 1).bit_length())
        return wide if wide * self._k < self.d else 1

    def nbytes(self, itemsize: int) -> int:
        """Bytes of a vector. itemsize: bytes of an ordinary number."""
        places = self._place_bits and (self.d if self._place_bits == 1 else self._k * self._place_bits)
        values = 4 + -(-self._k * self.coder.width // 8) if self.coder else self._k * itemsize
        return -(-places // 8) + values

    def pack(self, v: Tensor, rng: torch.Generator) -> bytes:
        """One vector [d] as the bytes that travel."""
        reduced, parts = self._reduced(v[None], [rng]), []
        if reduced.places is not None:
            places = reduced.places[0].numpy()
            if self._place_bits == 1:
                marks = np.zeros(self.d, np.uint8)
                marks[places] = 1
                parts.append(np.packbits(marks).tobytes())
            else:
                parts.append(_pack_whole(places, self._place_bits))
        if self.coder is None:
            parts.append(reduced.values[0].contiguous().numpy().tobytes())
        else:
            codes, scale = self.coder.codes(reduced.values)
            parts += [scale.numpy().tobytes(), _pack_whole(codes[0].numpy().astype(np.int64), self.coder.width)]
        return b"".join(parts)

    def unpack(self, data: bytes, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
        """The vector [d] in these bytes. rng: as in `pack`."""
        if len(data) != self.nbytes(dtype.itemsize):
            raise ValueError(f"an upload has {len(data)} bytes, not {self.nbytes(dtype.itemsize)}")
        index, k, at = None, self._k, 0
        if self._place_bits:
            at = -(-(self.d if self._place_bits == 1 else k * self._place_bits) // 8)
            raw = data[:at]
            places = (
                np.flatnonzero(np.unpackbits(np.frombuffer(raw, np.uint8), count=self.d))
                if self._place_bits == 1
                else _unpack_whole(raw, self._place_bits, k)
            )
            if len(places) != k or places.max() >= self.d:
                raise ValueError("an upload has places that do not exist")
            index = torch.from_numpy(places.astype(np.int64))[None]
        if self.coder is None:
            values = torch.frombuffer(bytearray(data[at:]), dtype=dtype)[None]
        else:
            scale = torch.frombuffer(bytearray(data[at : at + 4]), dtype=torch.float32).view(1, 1)
            codes = torch.from_numpy(_unpack_whole(data[at + 4 :], self.coder.width, k))[None]
            values = self.coder.values(codes, scale, dtype)
        if index is not None:
            return _scattered(self.d, index)(values)[0]
        like = torch.zeros(1, self.d, dtype=dtype)
        return self._reduced(like, [rng]).back(values)[0]


def check_order(steps: Sequence[Condition]) -> None:
    """At most one step chooses, and at most one, after it, says how many bits a number takes."""
    slots = [not step.chooses for step in steps if isinstance(step, Compressor)]
    if slots != sorted(set(slots)) or (len(steps) > 1 and isinstance(steps[0], LowRank)):
        raise ValueError(
            f"uplink = {'+'.join(map(str, steps))!r} is not allowed; it must be topk or randk, then quantize or sign; "
            "or one of them or lowrank alone"
        )


def check_downlink(steps: Sequence[Condition]) -> None:
    """A client that was absent has no older model to which a part could be added, so everybody needs all numbers."""
    if any(not isinstance(step, Quantize) for step in steps):
        raise ValueError(
            f"downlink = {'+'.join(map(str, steps))!r} is not allowed; it must be quantize, such as quantize:8: clients "
            "that were absent need all numbers"
        )


def _scattered(d: int, index: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda values: values.new_zeros(len(values), d).scatter_(1, index, values)


def _parts(row: Tensor, layers: Layers) -> list[tuple[Tensor, Sequence[int]]]:
    return list(zip(row.split_with_sizes(layers.sizes), layers.shapes, strict=True))


def _pack_whole(numbers: np.ndarray, bits: int) -> bytes:
    """Whole numbers >= 0 of so few bits each, one after the other."""
    shifts = np.arange(bits - 1, -1, -1)
    return np.packbits(((numbers[:, None] >> shifts) & 1).astype(np.uint8)).tobytes()


def _unpack_whole(data: bytes, bits: int, count: int) -> np.ndarray:
    each = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits).reshape(count, bits).astype(np.int64)
    numbers: np.ndarray = each @ (1 << np.arange(bits - 1, -1, -1))
    return numbers
