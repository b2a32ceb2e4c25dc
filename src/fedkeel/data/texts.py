"""Texts in arrays. A pair of sentences is one text with `PAIR` between the two."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

PAIR = "\x1e"  # the record separator, which no sentence contains


class Texts(Sequence[str]):
    """A read-only sequence of strings in two arrays. These may be memory-mapped: opening a million texts costs nothing."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        if data.dtype != np.uint8 or offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 1:
            raise ValueError(f"texts: expected uint8 bytes and int64 offsets, not {data.dtype} and {offsets.dtype}")
        if offsets[0] != 0 or offsets[-1] != len(data):
            raise ValueError(
                f"texts: the offsets end at {offsets[-1]}, but there are {len(data)} bytes; a file is cut short"
            )
        self.data = data  # [bytes] uint8: all texts in UTF-8, one after the other
        self.offsets = offsets  # [n + 1] int64: text i is data[offsets[i] : offsets[i + 1]]

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> Texts:
        coded = [string.encode() for string in strings]
        offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(coded), dtype=np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"text {i} does not exist: there are {len(self)}")
        i %= len(self)
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()

    def take(self, rows: np.ndarray) -> Texts:
        """The texts with these numbers."""
        return Texts.from_strings(self[int(i)] for i in rows)

    def __repr__(self) -> str:
        first = repr(self[0][:60]) if len(self) else "none"
        return f"Texts({len(self):,}: {first}{', ...' if len(self) > 1 else ''})"

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all texts. It names the token ids of these texts in the cache."""
        digest = hashlib.blake2b(self.offsets.tobytes(), digest_size=16)
        digest.update(np.ascontiguousarray(self.data).data)
        return digest.hexdigest()
