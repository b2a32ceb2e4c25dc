"""Records laid out in plain memory, so that processes can share them, numbers that they draw, and a word with the
allocator."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ALIGN = 64


class Layout:
    """Where the tensors of a record lie in a block of bytes."""

    def __init__(self, template: Any, rows: int | None = None) -> None:
        """With `rows`, every field is stacked that many times: [rows, ...]."""
        self.kind = type(template)
        self.fields: list[tuple[torch.Size, torch.dtype, int]] = []
        self.nbytes = 0
        for z in template:
            shape = z.shape if rows is None else torch.Size((rows, *z.shape))
            self.fields.append((shape, z.dtype, self.nbytes))
            self.nbytes += -(-shape.numel() * z.element_size() // ALIGN) * ALIGN

    def view(self, memory: mmap.mmap, offset: int = 0) -> Any:
        """The record that lies at `offset`, without copying."""
        return self.kind(*(tensor_in(memory, offset + at, shape, dtype) for shape, dtype, at in self.fields))


def tensor_in(memory: mmap.mmap, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(tuple(shape))


def shared_block(nbytes: int) -> mmap.mmap:
    """Zeroed memory that forked processes share; pages are only taken once written."""
    if sys.platform == "linux":
        noreserve = 0x4000  # MAP_NORESERVE: a sparse block may be larger than the memory
        return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | noreserve)
    return mmap.mmap(-1, max(nbytes, 1))


class Tickets:
    """The numbers 0, 1, 2, ... n; every call of `draw` in any forked process gets the next one, and n once all are drawn.

    They stand in a file, and forked processes share the place up to which it was read. The kernel moves that, so a process
    may be killed at any moment; one that holds a lock may not.
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
        os.lseek(self.file, 0, os.SEEK_SET)

    def draw(self) -> int:
        ticket = os.read(self.file, 4)
        return int.from_bytes(ticket, "little") if ticket else self.n

    def close(self) -> None:
        os.close(self.file)
