"""Tensors as Flower arrays: a record travels as a named ArrayRecord, every tensor in it as its raw bytes.

The receiver knows the form of the record from the method. It refuses an array whose name, dtype, shape or
length differs from that form. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedkeel.core.records import Record
from fedkeel.deploy.errors import InvalidMessage

PACKED = "packed"  # the dtype of compressed vectors
RAW = "fedkeel.raw.1"  # the storage type of our arrays: little-endian numbers in C order
DTYPES = {
    str(z).removeprefix("torch."): z for z in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def raw_bytes(z: Tensor) -> bytes:
    """The numbers of a tensor as bytes, in C order."""
    return z.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def to_array(z: Tensor) -> Array:
    return Array(dtype=dtype_name(z.dtype), shape=tuple(z.shape), stype=RAW, data=raw_bytes(z))


def check_raw(array: Array, name: str) -> None:
    if array.stype != RAW:
        raise InvalidMessage(f"{name} is stored as {array.stype[:40]!r}, not as {RAW!r}")


def to_tensor(array: Array, like: Tensor, name: str) -> Tensor:
    """The tensor in an Array. It must have the dtype and shape of `like`."""
    check_raw(array, name)
    dtype = dtype_name(like.dtype)
    if array.dtype != dtype or tuple(array.shape) != tuple(like.shape):
        raise InvalidMessage(f"{name} is {array.dtype[:20]} {list(array.shape)[:8]}, not {dtype} {list(like.shape)}")
    if len(array.data) != like.numel() * like.element_size():
        raise InvalidMessage(f"{name} has {len(array.data)} bytes, not {like.numel() * like.element_size()}")
    z = torch.frombuffer(bytearray(array.data), dtype=like.dtype).view(like.shape)
    # BLAS may round differently for another alignment, so the tensor moves to memory that torch allocates.
    return z.to(like.device, copy=True)


def packed_array(data: bytes) -> Array:
    """A compressed vector: its bytes as they travel."""
    return Array(dtype=PACKED, shape=(len(data),), stype=RAW, data=data)


def to_arrays(
    record: Record, without: Sequence[str] = (), packed: Mapping[str, bytes] = MappingProxyType({})
) -> ArrayRecord:
    """The fields of a record as an ArrayRecord, without empty tensors: Flower has no arrays without bytes.

    packed: the bytes of the fields that are compressed.
    """
    fields = {name: z for name, z in record._asdict().items() if z.numel() and name not in without}
    return ArrayRecord({name: packed_array(packed[name]) if name in packed else to_array(z) for name, z in fields.items()})


def to_record(
    arrays: Mapping[str, Array],
    like: Record,
    without: Sequence[str] = (),
    unpacked: Mapping[str, Tensor] = MappingProxyType({}),
) -> Record:
    """The record in an ArrayRecord. It must have the fields of `like`.

    without: fields that do not travel. They become zero.  unpacked: the fields that were compressed.
    """
    fields = like._asdict()
    expected = {name for name, z in fields.items() if z.numel() and name not in without}
    if set(arrays) != expected:
        raise InvalidMessage(f"it has the fields {sorted(arrays)[:8]}, not {sorted(expected)}")
    values = [
        unpacked[name] if name in unpacked else to_tensor(arrays[name], z, name) if name in expected else torch.zeros_like(z)
        for name, z in fields.items()
    ]
    return type(like)(*values)


def arrays_of(content: RecordDict, name: str) -> ArrayRecord:
    """The ArrayRecord `name` of a message, or an empty one."""
    return content.array_records.get(name, ArrayRecord())


def count_bytes(content: RecordDict) -> int:
    """The bytes of all tensors in a message."""
    return sum(len(array.data) for arrays in content.array_records.values() for array in arrays.values())


def record_digest(record: Record | None) -> str:
    """A hash of a record's numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for z in record or ():
        digest.update(raw_bytes(z))
    return digest.hexdigest()
