"""Client memory: the record of every client that has taken part, in shared memory or in a file.

The store never overwrites a record. A new record goes to a free slot, and `commit` makes it the client's record. The old
slot becomes free as soon as no checkpoint needs it. So a client that fails keeps its old record, and a kill at any moment
leaves everything that the last checkpoint points to.

The last two checkpoints can be resumed, so the records of both stay.

A file starts with random bytes, its name. The checkpoint holds the same name and a checksum of every record that it points
to. So a resumed run notices if the file is damaged, or if somebody has replaced it.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import tempfile
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.engine.state.checksums import number_of
from fedkeel.errors import Damaged
from fedkeel.files import guarded

CHUNK = 64  # slots reserved on disk at a time. Writing to a mapped file on a full disk would kill the process
CHUNK_BYTES = 1 << 24  # but no more than this if records are large
NAME_BYTES = 16
CHECKPOINTS = 2  # how many of them can be resumed
OLDER = "store.older"  # in an index: slots that the checkpoint before it needs
SUMS, OLD_SUMS = "store.checksums", "store.sums"  # in an index: checksums of the clients' slots; before XXH3, CRC-32
FILE = "clients.bin"
ALIGN = 64  # bytes; torch aligns its own tensors in the same way


class Store:
    """Slots of equal size. `live` says which slot holds the record of a client."""

    def __init__(self, initial: Any, seen: int, S: int, path: Path | None = None) -> None:
        """seen: the most clients that will ever take part.  S: the most clients of an exchange."""
        self.initial = initial  # the record of a new client; None: clients keep nothing
        self.live: dict[int, int] = {}  # client -> slot
        self.free: list[int] = []
        self.fresh = 0  # slots from this number on were never used
        self.reserved = 0  # slots below this number have room on the disk
        self.kept: deque[set[int]] = deque(maxlen=CHECKPOINTS)  # the slots that each of the last checkpoints needs
        self.waiting: list[int] = []  # old slots that become free when no checkpoint needs them
        self.sums: dict[int, int] = {}  # slot -> checksum of its bytes, of slots that a checkpoint points to
        self.path = path if initial is not None else None
        if initial is None:
            return
        self.layout = Layout(initial)
        self.size = max(self.layout.nbytes, ALIGN)
        # Room for the live slots, for those of the last checkpoints, and for those that are being written.
        self.nbytes = self._place((1 + CHECKPOINTS) * seen + 2 * S + CHUNK)
        if path is None:
            self.memory = shared_block(self.nbytes)
        elif not path.exists():
            self._create(path)
        # A file that exists belongs to a checkpoint. Only `restore` opens it, after it has checked the name.

    def _create(self, path: Path) -> None:
        with open(path, "xb") as file:
            file.write(os.urandom(NAME_BYTES))
        self.memory = self._map(path)

    def _map(self, path: Path) -> mmap.mmap:
        with open(path, "r+b") as file:
            if os.fstat(file.fileno()).st_size < self.nbytes:
                os.ftruncate(file.fileno(), self.nbytes)
            return mmap.mmap(file.fileno(), self.nbytes)

    def _place(self, slot: int) -> int:
        """The byte at which a slot begins."""
        return ALIGN + slot * self.size

    def __contains__(self, client: int) -> bool:
        return client in self.live

    def slot_record(self, slot: int | None) -> Any:
        """The record in a slot, without copying. For None the record of a new client."""
        if slot is None or self.initial is None:
            return self.initial
        return self.layout.view(self.memory, self._place(slot))

    def read(self, client: int) -> Any:
        return self.slot_record(self.live.get(client))

    def stage(self) -> int:
        """A free slot for a new record."""
        if self.free:
            return self.free.pop()
        slot, self.fresh = self.fresh, self.fresh + 1
        if self.path is not None and slot >= self.reserved:
            count = max(1, min(CHUNK, CHUNK_BYTES // self.size))
            guarded(self.path, lambda: self._reserve(slot, count))
            self.reserved = slot + count
        return slot

    def _reserve(self, slot: int, count: int) -> None:
        with open(self.path, "r+b") as file:  # type: ignore[arg-type]
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), self._place(slot), count * self.size)
            else:  # macOS
                file.seek(self._place(slot))
                file.write(bytes(count * self.size))

    def write(self, slot: int, record: Any) -> None:
        for target, z in zip(self.slot_record(slot), record, strict=True):
            target.copy_(z)

    @property
    def pinned(self) -> set[int]:
        """Slots that a checkpoint needs."""
        return set().union(*self.kept)

    def commit(self, client: int, slot: int) -> None:
        """Makes the record in `slot` the client's record."""
        old = self.live.get(client)
        self.live[client] = slot
        self.sums.pop(slot, None)  # of an older record in the same slot
        if old is not None:
            (self.waiting if any(old in slots for slots in self.kept) else self.free).append(old)

    def discard(self, slot: int) -> None:
        """Frees a slot that was staged, but will not be committed."""
        self.free.append(slot)

    def index(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the store: clients, their slots, checksums, and the record of a new client."""
        live = torch.tensor(list(self.live.items()), dtype=torch.int64).reshape(-1, 2)
        index = {"store.clients": live[:, 0].contiguous(), "store.slots": live[:, 1].contiguous()}
        if self.path is not None:
            guarded(self.path, self.memory.flush)
            index["store.name"] = torch.frombuffer(bytearray(self.memory[:NAME_BYTES]), dtype=torch.uint8)
            index[SUMS] = torch.tensor([self._sum(slot) for slot in self.live.values()], dtype=torch.int64)
        return index | {f"store.initial.{name}": z.cpu() for name, z in self._first().items()}

    def _sum(self, slot: int) -> int:
        """The checksum of a slot. It is computed once: a record never changes after its commit."""
        if slot not in self.sums:
            self.sums[slot] = self._sum_now(slot)
        return self.sums[slot]

    def _sum_now(self, slot: int, checksum: Callable[[memoryview], int] = number_of) -> int:
        with memoryview(self.memory) as memory:
            place = self._place(slot)
            return checksum(memory[place : place + self.layout.nbytes])

    def _first(self) -> dict[str, Tensor]:
        """The fields of a new client's record. A checkpoint keeps them: the record may depend on the initial model, and a
        script that resumes may make its model with other weights."""
        return {} if self.initial is None else self.initial._asdict()

    def pin(self) -> None:
        """Call this when the checkpoint with the present index is on disk. Slots of the oldest one become free."""
        self.kept.append(set(self.live.values()))
        needed = self.pinned
        self.free += [slot for slot in self.waiting if slot not in needed]
        self.waiting = [slot for slot in self.waiting if slot in needed]

    def restore(self, index: dict[str, Tensor]) -> None:
        """Goes back to the state of a checkpoint. Raises Damaged if its records are not there."""
        if first := {name: index.get(f"store.initial.{name}", z).to(z.device) for name, z in self._first().items()}:
            self.initial = type(self.initial)(**first)
        self.live = dict(zip(index["store.clients"].tolist(), index["store.slots"].tolist(), strict=True))
        now = set(self.live.values())
        older = set(index[OLDER].tolist()) if OLDER in index else set()
        self.kept = deque([older, now], maxlen=CHECKPOINTS)
        self.fresh = max(now | older, default=-1) + 1
        self.reserved = 0
        self.free = sorted(set(range(self.fresh)) - now - older)
        self.waiting = sorted(older - now)
        self.sums = {}
        if self.path is not None:
            self._reopen(self.path, bytes(index["store.name"].tolist()), max(now, default=-1) + 1)
            if SUMS in index:  # version 0.1.0 had no checksums
                self.sums = self._checked(self.path, index[SUMS].tolist(), number_of)
            elif OLD_SUMS in index:
                self._checked(self.path, index[OLD_SUMS].tolist(), zlib.crc32)

    def _checked(self, path: Path, sums: list[int], checksum: Callable[[memoryview], int]) -> dict[int, int]:
        """Slot -> its checksum. Raises Damaged if a live slot does not have its checksum."""
        expected = dict(zip(self.live.values(), sums, strict=True))
        bad = [client for client, slot in self.live.items() if self._sum_now(slot, checksum) != expected[slot]]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise Damaged(f"resume: {path} is damaged: the checksum of client {bad[0]}{more} is wrong")
        return expected

    def _reopen(self, path: Path, name: bytes, slots: int) -> None:
        """Maps the file into memory, after a check that it has this name and at least this number of slots."""
        try:
            with open(path, "rb") as file:
                fits = os.fstat(file.fileno()).st_size >= self._place(slots) and file.read(NAME_BYTES) == name
        except OSError:
            fits = False
        if not fits:
            raise Damaged(
                f"resume: {path} is not the client memory of the checkpoint beside it (deleted, cut or of another run)"
            )
        self.memory = guarded(path, lambda: self._map(path))


def open_store(initial: Any, seen: int, S: int, path: Path | None, on_disk: bool) -> Store:
    """Client memory in the file at `path`. Without a path: in a temporary file (on_disk), or in shared memory."""
    if path is None and not on_disk:
        return Store(initial, seen, S)
    file = path or Path(tempfile.mkdtemp(prefix="fedkeel-")) / FILE
    store: Store = guarded(file, lambda: Store(initial, seen, S, file))
    if path is None:
        weakref.finalize(store, shutil.rmtree, file.parent, ignore_errors=True)
    return store


# Records in a block of bytes -----------------------------------------------------------------------------------------


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
