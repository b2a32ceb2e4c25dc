"""Records are NamedTuples of tensors: the state of the server, the state of a client, an upload.

Here: the part of a server record that is sent, the cost of sending a record, the form of a record (names, shapes, dtypes),
and a check for numbers that are not finite.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedkeel.errors import NotFinite

if TYPE_CHECKING:
    from fedkeel.core.algorithm import Algorithm


Record = Any  # a NamedTuple of tensors


def down_record(algo: Algorithm, server: Record) -> Record:
    """The part of the server record that is sent to the clients."""
    return _down(algo.facts.sends)(*(getattr(server, name) for name in algo.facts.sends))


@functools.cache
def _down(sends: tuple[str, ...]) -> type:
    return namedtuple("Down", sends)


def floats(record: Record, without: Sequence[str] = ()) -> int:
    """How many numbers a record holds, which is the cost of sending it. without: fields that do not count."""
    if record is None:
        return 0
    return sum(z.numel() for name, z in record._asdict().items() if name not in without)


def is_record(value: Any) -> bool:
    """Is it a NamedTuple of tensors?"""
    return hasattr(value, "_fields") and all(isinstance(z, Tensor) for z in value)


def form(record: Any) -> Any:
    """Names, shapes and dtypes of a record's fields. They stay the same during a run.

    Of what is no record: its type's name, or None for None.
    """
    if not is_record(record):
        return None if record is None else type(record).__name__
    return [[name, list(z.shape), str(z.dtype)] for name, z in record._asdict().items()]


def numbers(tensors: Sequence[Tensor]) -> list[float]:
    """The numbers in tensors with one element each. It waits once for their device, not once for each of them."""
    if all(z.device.type == "cpu" for z in tensors):
        return [float(z) for z in tensors]
    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # MPS has no float64
    return torch.stack([z.detach().reshape(()).to(wide) for z in tensors]).tolist()


def check_finite(*records: Any, without: Collection[str] = (), beside: Sequence[Tensor] = ()) -> list[float]:
    """Raises NotFinite, with the field's name, if a record holds NaN or infinity. without: fields that are not checked.

    beside: tensors with one number each, which are read with the same wait for the device. Returns their numbers.
    """
    fields = [(name, z) for one in records if one is not None for name, z in one._asdict().items() if name not in without]
    # A finite sum means that all numbers are finite, and is cheaper than a look at each. The sum itself may overflow, so
    # only the second test is sure.
    read = numbers([*(z.sum() for _, z in fields), *beside])
    for (name, z), total in zip(fields, read, strict=False):
        if not math.isfinite(total) and not bool(torch.isfinite(z).all()):
            raise NotFinite(f"{name} is not finite")
    return read[len(fields) :]
