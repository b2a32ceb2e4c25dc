"""Records are NamedTuples of tensors: the state of the server, the state of a client, an upload.

Here: the part of a server record that is sent, the cost of sending a record, the form of a record (names, shapes, dtypes),
and a check for numbers that are not finite.

A trial of a method's local work shows which records it makes, and so what an upload costs, before a run starts. It needs no
data: it is one step whose gradient is zero. It also finds a method that does not return the records that it declares.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.flat import Layers
from fedkeel.core.ranges import Range
from fedkeel.core.steps import Grad, Objective, Steps
from fedkeel.errors import NotFinite, OutOfRange

if TYPE_CHECKING:
    from fedkeel.core.algorithm import Algorithm
    from fedkeel.core.features import OwnLoss
    from fedkeel.core.round import Round


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


def mean_floats(algo: Algorithm, up: Record, r: Round) -> float:
    """The mean number of floats in the uploads of an exchange, [S, ...]."""
    return _mean_size(algo, {name: math.prod(z.shape[1:]) for name, z in up._asdict().items()}, r)


def mean_bytes(algo: Algorithm, up: Record, r: Round) -> float:
    """The mean bytes of the uploads of an exchange, [S, ...]."""
    return _mean_size(algo, {name: math.prod(z.shape[1:]) * z.element_size() for name, z in up._asdict().items()}, r)


def _mean_size(algo: Algorithm, size: dict[str, int], r: Round) -> float:
    """size: that of every field. Only clients with the role `tracks` send the fields that the method declares as tracked."""
    tracked = [name for name in algo.facts.tracked if name in size]
    extra = sum(size.pop(name) for name in tracked)
    always = sum(size.values())
    return always + extra * float(r.drawn.tracks.mean()) if tracked else float(always)


def is_record(value: Any) -> bool:
    """Is it a NamedTuple of tensors?"""
    return hasattr(value, "_fields") and all(isinstance(z, Tensor) for z in value)


def form(record: Any) -> Any:
    """Names, shapes and dtypes of a record's fields. They stay the same during a run.

    If it is not a record: the name of its type, or None for None.
    """
    if not is_record(record):
        return None if record is None else type(record).__name__
    return [[name, list(z.shape), str(z.dtype)] for name, z in record._asdict().items()]


def numbers(tensors: Sequence[Tensor]) -> list[float]:
    """The numbers in tensors with one element each. It waits once for their device, not once for each of them."""
    if not tensors or tensors[0].is_cpu:
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


# Ranges that a record declares ----------------------------------------------------------------------------------------


@functools.cache
def ranges_of(kind: type) -> dict[str, Range]:
    """The fields of a record type that declare a range."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # types that are written as text may name what only mypy imports
        return {}
    found = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
    return {name: allowed for name, allowed in found.items() if isinstance(allowed, Range)}


def check_ranges(*records: Any) -> None:
    """Raises OutOfRange, with the field's name, if a record of one client leaves a range that its type declares."""
    for record in records:
        if record is not None:
            for name, allowed in ranges_of(record.__class__).items():
                z = getattr(record, name)
                if z.numel() and bool(allowed.rows_outside(z.reshape(1, -1))):
                    raise OutOfRange(f"{name} has the number {float(z.min()):.3g}; it must be {allowed}")


def rows_outside(*records: Any) -> dict[int, str]:
    """Rows of records [S, ...] that leave a range, and why."""
    found: dict[int, str] = {}
    for record in records:
        for name, allowed in () if record is None else ranges_of(record.__class__).items():
            z = getattr(record, name)
            if z.numel():
                rows = torch.nonzero(allowed.rows_outside(z)).flatten().tolist()
                found |= dict.fromkeys(rows, f"OutOfRange: {name} must be {allowed}")
    return found


# A trial of a method -------------------------------------------------------------------------------------------------


class ZeroGrad(Grad):
    """A mini-batch whose loss and gradient are zero everywhere."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __call__(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)

    def plus(self, own: OwnLoss, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        return torch.zeros_like(w)

    def loss(self, w: Tensor) -> Tensor:
        return w.new_zeros(1)


class TrialSteps(Steps):
    """One local step whose gradient is zero."""

    def __init__(self, layers: Layers, roles: Sequence[str], dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.K, self.t, self.layers, self.dtype, self.device = 1, 0, layers, dtype, device
        self.drawn = SimpleNamespace(**{role: torch.ones(1, dtype=dtype, device=device) for role in roles})
        self.objective = Objective(model=None, loss=None)  # type: ignore[arg-type]
        self.seeds = lambda: [0]

    def __iter__(self) -> Iterator[Grad]:
        yield ZeroGrad(self)

    def copy(self, x: Tensor) -> Tensor:
        return x.clone()

    def zeros(self) -> Tensor:
        return torch.zeros(sum(self.layers.sizes), dtype=self.dtype, device=self.device)

    def random(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        return draw(*self.generators).to(self.device)

    def full_grad(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)


def exchanges_of(algo: Algorithm) -> list[str]:
    """The exchanges with clients that the method has, by the names of their client hooks."""
    return ["warmup"] * algo.warms_up() + ["survey"] * hasattr(algo, "survey") + ["client"]


def small_layers(count: int) -> Layers:
    """The layers of a small model, for trials of a method."""
    return Layers([2] * count)


def trial_upload(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> Record:
    """What a client uploads in an exchange, for a model with these layers; only shapes and dtypes mean anything.

    The method must be planned for as many layers.
    """
    return _try(algo, stage, layers, dtype)[0]


def _try(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """(upload, new client record, the client record before it)."""
    x = torch.zeros(sum(layers.sizes), dtype=dtype)
    server, mem = algo.init(x)
    roles = algo.draw(np.random.default_rng(0), [0])
    hook: Any = getattr(algo, stage)
    up, new = hook(down_record(algo, server), mem, TrialSteps(layers, list(roles), dtype))
    return up, new, mem


def check_records(algo: Algorithm, layers: Layers) -> None:
    """Refuses a method whose client hooks do not return an upload record, or change the form of the client record.

    layers: those of the model for which the method was planned. The trial has as many, all small.
    """
    small = small_layers(len(layers.sizes))
    for stage in exchanges_of(algo):
        try:
            up, new, mem = _try(algo, stage, small, torch.float32)
        except Exception as error:
            raise ValueError(
                f"{algo.name}: {stage} fails in a trial step whose gradient is zero: {type(error).__name__}: {error}"
            ) from error
        if not is_record(up):
            raise ValueError(
                f"{algo.name}: {stage} returns a {type(up).__name__} as its upload; it must be a NamedTuple of tensors"
            )
        if form(new) != form(mem):
            raise ValueError(
                f"{algo.name}: {stage} returns a client record of {_in_words(new)}; init declares {_in_words(mem)}"
            )


class OrdinaryOrder:
    """Puts the vectors in the records of a run into the order of `model.parameters()`, if the run has another one.

    Which fields are vectors [..., d] shows a trial: their last dimension is as long as the model.
    """

    def __init__(self, algo: Algorithm, layers: Layers) -> None:
        self.layers = layers
        self.vectors: set[tuple[type, str]] = set()
        if layers.channels_last:
            for short, long in zip(algo.init(torch.zeros(5)), algo.init(torch.zeros(7)), strict=True):
                for name in () if short is None else short._fields:
                    if getattr(short, name).shape[-1:] != getattr(long, name).shape[-1:]:
                        self.vectors.add((type(short), name))

    def __call__(self, record: Any) -> Any:
        if not self.vectors:
            return record
        return type(record)(
            *(self.layers.in_order(z) if (type(record), name) in self.vectors else z for name, z in record._asdict().items())
        )


def _in_words(record: Any) -> str:
    fields = form(record)
    if isinstance(fields, list):
        return ", ".join(f"{name} {shape}" for name, shape, _ in fields)
    return str(fields or "no fields")
