"""Records on the wire: every tensor a raw buffer in a named ArrayRecord, and one ConfigRecord that says what it is about.

A message from the server holds `down` (what it sends to all), `buffers` (statistics of the model, if it has any) and the
facts of `Order`; an answer holds `up`, `buffers` and the facts of `Reply`. Nothing is ever unpickled: a buffer that has not
exactly the name, dtype, shape and length that the method's own record has is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

SCHEMA = 1  # of all below; another number is refused
RAW = f"fedkeel.raw.{SCHEMA}"  # how the bytes of an Array are made: little-endian numbers in C order
FACTS = "fedkeel"  # name of the ConfigRecord
DTYPES = {
    str(z).removeprefix("torch."): z for z in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
}
RAISED = 2  # Flower's code of an error that a client's app raised
NEW = -1  # the number of the record of a client that was never seen before


class Refused(ValueError):
    """A message that does not say what it should."""


# Tensors --------------------------------------------------------------------------------------------------------------


def to_array(z: Tensor) -> Array:
    z = z.detach().cpu().contiguous()
    data = z.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Array(dtype=str(z.dtype).removeprefix("torch."), shape=tuple(z.shape), stype=RAW, data=data)


def to_tensor(array: Array, like: Tensor, name: str) -> Tensor:
    """The tensor in an Array, which must be of the form of `like`."""
    dtype = str(like.dtype).removeprefix("torch.")
    if array.stype != RAW:
        raise Refused(f"{name} is stored as {array.stype[:40]!r}, not as {RAW!r}")
    if array.dtype != dtype or tuple(array.shape) != tuple(like.shape):
        raise Refused(f"{name} is {array.dtype[:20]} {list(array.shape)[:8]}, not {dtype} {list(like.shape)}")
    if len(array.data) != like.numel() * like.element_size():
        raise Refused(f"{name} has {len(array.data)} bytes, not {like.numel() * like.element_size()}")
    found = torch.frombuffer(bytearray(array.data), dtype=like.dtype).view(like.shape)
    return found.to(like.device, copy=True)  # lies where torch puts it: products depend on that


def to_arrays(record: Any, without: Sequence[str] = ()) -> ArrayRecord:
    """A record as an ArrayRecord of its fields; empty tensors are not sent (Flower has no arrays without bytes)."""
    named = record._asdict().items()
    return ArrayRecord({name: to_array(z) for name, z in named if z.numel() and name not in without})


def to_record(arrays: Mapping[str, Array], like: Any, without: Sequence[str] = ()) -> Any:
    """The record in an ArrayRecord, which must have the fields of `like`; those of `without` were not sent and are zero."""
    named = like._asdict()
    expected = {name for name, z in named.items() if z.numel() and name not in without}
    if set(arrays) != expected:
        raise Refused(f"it has the fields {sorted(arrays)[:8]}, not {sorted(expected)}")
    values = [to_tensor(arrays[name], z, name) if name in expected else torch.zeros_like(z) for name, z in named.items()]
    return type(like)(*values)


def arrays_of(content: RecordDict, name: str) -> ArrayRecord:
    """The ArrayRecord `name` of a message, empty if there is none."""
    return content.array_records.get(name, ArrayRecord())


def count_bytes(content: RecordDict) -> int:
    """The bytes of all tensors in a message."""
    return sum(len(array.data) for arrays in content.array_records.values() for array in arrays.values())


# Facts ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Numbers and words of a message. A field that is missing, or of another type than here, is refused."""

    def config(self) -> ConfigRecord:
        return ConfigRecord({"schema": SCHEMA, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        given = content.config_records.get(FACTS)
        if given is None:
            raise Refused("it is not a message of fedkeel")
        if given.get("schema") != SCHEMA:
            told = str(given.get("schema"))[:20]
            raise Refused(f"schema {told} is unknown here, where it is {SCHEMA}: the other side has another fedkeel")
        kinds = {"int": int, "float": float, "str": str, "bool": bool}
        values = {}
        for field in dataclasses.fields(cls):
            value = given.get(field.name)
            if type(value) is not kinds[str(field.type)]:
                raise Refused(f"{field.name} = {str(value)[:40]!r} is not a {field.type}")
            values[field.name] = value
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Hello(Facts):
    """What a client tells before the first round."""

    client: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class Order(Facts):
    """What the server asks of a client."""

    run: str  # name of the run, 32 hexadecimal digits
    stage: str  # client, survey or warmup
    round: int
    client: int
    steps: int  # K
    base: int  # the number of the client's record from which it shall go on; NEW: it has none yet
    record: int  # the number of the record that it will make
    drawn: str  # JSON: its roles in this round
    task: str  # JSON: see Task


@dataclass(frozen=True, kw_only=True)
class Reply(Facts):
    """What an answer is an answer to, and the client's loss."""

    run: str
    stage: str
    round: int
    client: int
    loss: float
    fresh: bool  # it had to begin as a new client, for the record that it was asked to go on from is lost


@dataclass(frozen=True)
class Task:
    """What does not change during a run and clients must know; the same for all of them."""

    algorithm: str
    hyperparameters: dict[str, Any]  # with those filled in that depend on N, S, K and T
    seed: int
    batch_size: int | None
    lr_decay: float
    weight_decay: float
    clip: float | None
    dtype: str
    start: str  # hash of the record of a new client: where it depends on the initial model, models must agree

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Task:
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise Refused(f"its task cannot be read: {error}") from None
