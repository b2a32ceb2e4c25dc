"""Memory that forked processes share: records laid out in a block of bytes, and numbered tickets that each draw once."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGN = 64  # bytes; torch aligns its own tensors in the same way


class Layout:
    """Where the tensors of a record lie in a block of bytes. A field may itself be a record, or a dict of records."""

    def __init__(self, template: Any) -> None:
        """Only shapes and dtypes of the template count."""
        self.nbytes = 0
        self.places = _mapped(template, Tensor, self._reserve)

    def _reserve(self, z: Tensor) -> Place:
        place = Place(self.nbytes, z.shape, z.dtype)
        self.nbytes += -(-z.numel() * z.element_size() // ALIGN) * ALIGN
        return place

    def view(self, memory: mmap.mmap, offset: int = 0) -> Any:
        """The record at `offset`, without copying."""
        return _mapped(self.places, Place, lambda place: _tensor_in(memory, offset + place.offset, *place[1:]))


class Place(NamedTuple):
    """Where one tensor lies in a block."""

    offset: int
    shape: Sequence[int]
    dtype: torch.dtype


def _mapped(record: Any, leaf: type, change: Callable[[Any], Any]) -> Any:
    """The same nest of records and dicts, with every leaf changed."""
    if isinstance(record, leaf):
        return change(record)
    if isinstance(record, dict):
        return {name: _mapped(z, leaf, change) for name, z in record.items()}
    return type(record)(*(_mapped(z, leaf, change) for z in record))


def _tensor_in(memory: mmap.mmap, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(tuple(shape))


def shared_block(nbytes: int) -> mmap.mmap:
    """Zeroed memory that forked processes share. The system takes a page only when somebody writes to it."""
    if sys.platform == "linux":
        noreserve = 0x4000  # MAP_NORESERVE: a block with few used pages may be larger than the memory
        return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | noreserve)
    return mmap.mmap(-1, max(nbytes, 1))


class Tickets:
    """The numbers 0, 1, 2, ... n - 1. Each call of `draw`, in whatever process, gets the next one; after the last it gets n.

    The numbers stand in a file, and forked processes share its read position. The kernel moves that position, so you may
    kill a process at any moment. A lock would stay locked if its holder were killed.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        if sys.platform == "linux":
            self.file = os.memfd_create("tickets")
        else:
            self.file, path = tempfile.mkstemp()
            os.unlink(path)
        os.write(self.file, b"".join(number.to_bytes(4, "little") for number in range(n)))
        self.restart()

    def restart(self) -> None:
        """The next call of `draw` gets 0 again."""
        os.lseek(self.file, 0, os.SEEK_SET)

    def draw(self) -> int:
        ticket = os.read(self.file, 4)
        return int.from_bytes(ticket, "little") if ticket else self.n

    def close(self) -> None:
        os.close(self.file)
