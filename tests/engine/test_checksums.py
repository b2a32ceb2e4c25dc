"""Checksums find damage, and those of files from before XXH3 still count."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedkeel.engine.state import store as stores
from fedkeel.engine.state.checksums import checksum, fits
from fedkeel.errors import Damaged


class Record(NamedTuple):
    a: Tensor


def old(z: Tensor) -> str:
    return f"{z.dtype} {list(z.shape)} {zlib.crc32(z.numpy().tobytes()):08x}"


@pytest.mark.parametrize("z", [torch.arange(1000.0), torch.zeros(3, 4, dtype=torch.int64), torch.zeros(0)])
def test_a_tensor_has_its_checksum(z: Tensor) -> None:
    assert fits(z, checksum(z))
    assert fits(z, old(z))


def test_another_bit_another_place_another_shape() -> None:
    z = torch.arange(1000.0)
    changed, swapped = z.clone(), z.clone()
    changed.view(torch.int32)[500] ^= 1
    swapped[[3, 700]] = swapped[[700, 3]]
    for other in (changed, swapped, z.view(10, 100), z.view(torch.int32)):
        assert not fits(other, checksum(z))
        assert not fits(other, old(z))


@pytest.mark.parametrize("key", [stores.SUMS, stores.OLD_SUMS])
def test_client_memory_of_today_and_of_before(tmp_path: Path, key: str) -> None:
    path = tmp_path / "clients.bin"
    store = stores.Store(Record(torch.zeros(50)), seen=3, S=3, path=path)
    for client in range(3):
        slot = store.stage()
        store.write(slot, Record(torch.arange(50.0) + client))
        store.commit(client, slot)
    index = store.index()
    if key == stores.OLD_SUMS:
        del index[stores.SUMS]
        nbytes = store.layout.nbytes
        content = [path.read_bytes()[store._place(slot) :][:nbytes] for slot in store.live.values()]
        index[key] = torch.tensor([zlib.crc32(part) for part in content])
    again = stores.Store(Record(torch.zeros(50)), seen=3, S=3, path=path)
    again.restore(index)
    assert torch.equal(again.read(2).a, torch.arange(50.0) + 2)
    assert torch.equal(again.index()[stores.SUMS], store.index()[stores.SUMS])
    store.slot_record(store.live[1]).a[7] += 1
    with pytest.raises(Damaged, match="the checksum of client 1 is wrong"):
        stores.Store(Record(torch.zeros(50)), seen=3, S=3, path=path).restore(index)
