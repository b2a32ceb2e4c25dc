"""Records: NamedTuples of tensors, what of them is sent, and what that costs."""

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
    """How many numbers a record holds: the cost of sending it."""
    if record is None:
        return 0
    return sum(z.numel() for name, z in record._asdict().items() if name not in without)


def is_record(value: Any) -> bool:
    return hasattr(value, "_fields") and all(isinstance(z, Tensor) for z in value)


def form(record: Any) -> Any:
    """Names, shapes and dtypes of a record's fields: what a later one must have, too."""
    if not is_record(record):
        return None if record is None else type(record).__name__
    return [[name, list(z.shape), str(z.dtype)] for name, z in record._asdict().items()]


def check_finite(*records: Any, without: Collection[str] = ()) -> None:
    """Raises if a record is not; without: fields that are not looked at."""
    for record in records:
        if record is None:
            continue
        for name, z in [(name, z) for name, z in record._asdict().items() if name not in without]:
            # The sum is finite only if all numbers are, and cheaper than looking at each; it may overflow though.
            if not math.isfinite(z.sum()) and not bool(torch.isfinite(z).all()):
                raise NotFinite(f"{name} is not finite")
