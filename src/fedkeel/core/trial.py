"""A trial of a method's local work without data: one step whose gradient is zero.

It shows what the method uploads, and so what an upload costs, before a run starts. It also finds a method that does not
return the records that it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.features import OwnLoss
from fedkeel.core.flat import Layers
from fedkeel.core.records import Record, down_record, form, is_record
from fedkeel.core.steps import Grad, Objective, Steps


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

    def __init__(self, layers: Layers, roles: Sequence[str], dtype: torch.dtype) -> None:
        self.K, self.t, self.layers, self.dtype = 1, 0, layers, dtype
        self.drawn = SimpleNamespace(**{role: torch.ones(1, dtype=dtype) for role in roles})
        self.objective = Objective(model=None, loss=None)  # type: ignore[arg-type]
        self.seeds = lambda: [0]

    def __iter__(self) -> Iterator[Grad]:
        yield ZeroGrad(self)

    def copy(self, x: Tensor) -> Tensor:
        return x.clone()

    def zeros(self) -> Tensor:
        return torch.zeros(sum(self.layers.sizes), dtype=self.dtype)

    def random(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        return draw(*self.generators)

    def full_grad(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)


def exchanges_of(algo: Algorithm) -> list[str]:
    """The exchanges with clients that the method has, by the names of their client hooks."""
    return ["warmup"] * algo.warms_up() + ["survey"] * hasattr(algo, "survey") + ["client"]


def trial_upload(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> Record:
    """What a client uploads in an exchange, for a model with these layers; only shapes and dtypes mean anything."""
    return _try(algo, stage, layers, dtype)[0]


def _try(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """(upload, new client record, the client record before it)."""
    x = torch.zeros(sum(layers.sizes), dtype=dtype)
    server, mem = algo.init(x)
    roles = algo.draw(np.random.default_rng(0), [0])
    hook: Any = getattr(algo, stage)
    up, new = hook(down_record(algo, server), mem, TrialSteps(layers, list(roles), dtype))
    return up, new, mem


def check_records(algo: Algorithm) -> None:
    """Refuses a method whose client hooks do not return an upload record, or change the form of the client record."""
    for stage in exchanges_of(algo):
        try:
            up, new, mem = _try(algo, stage, Layers([3, 2]), torch.float32)
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
