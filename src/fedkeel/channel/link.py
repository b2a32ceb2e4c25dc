"""The way of vectors between clients and server, in few bits: the steps of an uplink or of the downlink.

`Link.send` does in a simulation what `pack` and `unpack` do with real bytes, with the same bits in the numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.channel.compression import Chooser, Coder, Compressor, Generators, LowRank, Quantize, Reduced, scattered
from fedkeel.channel.words import JOIN, Condition
from fedkeel.core.flat import Layers


class Link:
    """The steps of an uplink or of the downlink, for the vectors of a model with these layers."""

    def __init__(self, steps: Sequence[Condition], layers: Layers, plain: Collection[str] = ()) -> None:
        """plain: names of fields that are sent as they are."""
        choosers = [step for step in steps if isinstance(step, Chooser)]
        coders = [step for step in steps if isinstance(step, Coder)]
        check_order(steps)
        self.chooser, self.coder = next(iter(choosers), None), next(iter(coders), None)
        self.layers, self.d, self.text = layers, sum(layers.sizes), JOIN.join(map(str, steps))
        if self.chooser is not None and self.chooser.neutral:
            self.chooser = None
        self.plain = frozenset(plain)
        self.neutral = self.chooser is None and self.coder is None

    def send(self, v: Tensor, rngs: Generators) -> Tensor:
        """v [S, d] as the server gets it."""
        reduced = self._reduced(v, rngs)
        values = reduced.values
        if self.coder is not None:
            values = self.coder.values(*self.coder.codes(values), v.dtype)
        return reduced.back(values)

    def takes(self, field: str, shape: Sequence[int]) -> bool:
        """Is a field of this name and shape compressed? Vectors as long as the model are, unless they are plain."""
        return tuple(shape) == (self.d,) and field not in self.plain

    def record(self, down: Any) -> Any:
        """What clients get of the server's record, on a downlink."""
        fields = down._asdict().items()
        return type(down)(*(self.send(z[None], ())[0] if self.takes(name, z.shape) else z for name, z in fields))

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
            return scattered(self.d, index)(values)[0]
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


def _pack_whole(numbers: np.ndarray, bits: int) -> bytes:
    """Whole numbers >= 0 of so few bits each, one after the other."""
    shifts = np.arange(bits - 1, -1, -1)
    return np.packbits(((numbers[:, None] >> shifts) & 1).astype(np.uint8)).tobytes()


def _unpack_whole(data: bytes, bits: int, count: int) -> np.ndarray:
    each = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits).reshape(count, bits).astype(np.int64)
    numbers: np.ndarray = each @ (1 << np.arange(bits - 1, -1, -1))
    return numbers
