"""Client memory: one record per client that was ever seen, in shared memory or in a file.

A record is never overwritten. A new one goes to a free slot and becomes valid when it is committed; the old slot is free
again once no checkpoint needs it. So a client that fails keeps what it had, and a kill at any moment leaves everything
that the last checkpoint points to.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkeel.engine.memory import Layout, shared_block

CHUNK = 64  # slots reserved on disk at a time, so that a full disk is an error and not a crash


class Store:
    """Slots of equal size. `live` says which slot holds the record of a client."""

    def __init__(self, initial: Any, N: int, S: int, path: Path | None = None) -> None:
        self.initial = initial  # the record of a client never seen before; None: clients keep nothing
        self.live: dict[int, int] = {}
        self.free: list[int] = []
        self.fresh = 0  # slots from here on were never used
        self.reserved = 0
        self.pinned: set[int] = set()  # slots that the last checkpoint points to
        self.waiting: list[int] = []  # retired slots that it still needs
        self.path = path
        if initial is None:
            return
        self.layout = Layout(initial)
        # Live slots, those of the last checkpoint, and the ones being written.
        nbytes = self.layout.nbytes * (2 * N + 2 * S + CHUNK)
        if path is None:
            self.memory = shared_block(nbytes)
        else:
            self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self.file, nbytes)
            self.memory = mmap.mmap(self.file, nbytes)

    def __contains__(self, client: int) -> bool:
        return client in self.live

    def slot_record(self, slot: int | None) -> Any:
        """The record in a slot, without copying; the initial one for None."""
        if slot is None or self.initial is None:
            return self.initial
        return self.layout.view(self.memory, slot * self.layout.nbytes)

    def read(self, client: int) -> Any:
        return self.slot_record(self.live.get(client))

    def stage(self) -> int:
        """A slot to write a new record to."""
        if self.free:
            return self.free.pop()
        slot, self.fresh = self.fresh, self.fresh + 1
        if self.path is not None and slot >= self.reserved:
            size = self.layout.nbytes
            os.posix_fallocate(self.file, slot * size, CHUNK * size)
            self.reserved = slot + CHUNK
        return slot

    def write(self, slot: int, record: Any) -> None:
        for target, z in zip(self.slot_record(slot), record, strict=True):
            target.copy_(z)

    def commit(self, client: int, slot: int) -> None:
        """Makes the record in `slot` the client's own."""
        old = self.live.get(client)
        self.live[client] = slot
        if old is not None:
            (self.waiting if old in self.pinned else self.free).append(old)

    def discard(self, slot: int) -> None:
        self.free.append(slot)

    def index(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the store: clients and their slots."""
        if self.initial is not None and self.path is not None:
            self.memory.flush()
        live = torch.tensor(list(self.live.items()), dtype=torch.int64).reshape(-1, 2)
        return {"store.clients": live[:, 0].contiguous(), "store.slots": live[:, 1].contiguous()}

    def pin(self) -> None:
        """The checkpoint with the present index is on disk: only its slots are needed from now on."""
        self.pinned = set(self.live.values())
        self.free += self.waiting
        self.waiting = []

    def restore(self, index: dict[str, Tensor]) -> None:
        self.live = dict(zip(index["store.clients"].tolist(), index["store.slots"].tolist(), strict=True))
        self.pinned = set(self.live.values())
        self.fresh = max(self.pinned, default=-1) + 1
        self.reserved = 0
        self.free = sorted(set(range(self.fresh)) - self.pinned)
