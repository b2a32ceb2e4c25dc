"""A method's local work without data: what its upload looks like, and so what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class DryGrad(Grad):
    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __call__(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)

    def plus(self, own: OwnLoss, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        return torch.zeros_like(w)

    def loss(self, w: Tensor) -> Tensor:
        return w.new_zeros(1)


class DrySteps(Steps):
    """One step whose gradient is zero."""

    def __init__(self, layers: Layers, roles: Sequence[str], dtype: torch.dtype) -> None:
        self.K, self.t, self.layers, self.dtype = 1, 0, layers, dtype
        self.drawn = SimpleNamespace(**{role: torch.ones(1, dtype=dtype) for role in roles})
        self.objective = Objective(model=None, loss=None)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Grad]:
        yield DryGrad(self)

    def copy(self, x: Tensor) -> Tensor:
        return x.clone()

    def zeros(self) -> Tensor:
        return torch.zeros(sum(self.layers.sizes), dtype=self.dtype)

    def full_grad(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)


def stages(algo: Algorithm) -> list[str]:
    """The kinds of local work that the method has."""
    return ["warmup"] * algo.warms_up() + ["survey"] * hasattr(algo, "survey") + ["client"]


def dry_run(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> Record:
    """The upload record of a stage for a model with these layers; only its shapes mean anything."""
    return _work(algo, stage, layers, dtype)[0]


def _work(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """(upload, client record, the client record that it began with)."""
    x = torch.zeros(sum(layers.sizes), dtype=dtype)
    server, mem = algo.init(x)
    roles = algo.draw(np.random.default_rng(0), [0])
    work: Any = getattr(algo, stage)
    up, new = work(down_record(algo, server), mem, DrySteps(layers, list(roles), dtype))
    return up, new, mem


def check_records(algo: Algorithm) -> None:
    """Refuses a method whose local work does not return records of the form that it declares."""
    for stage in stages(algo):
        try:
            up, new, mem = _work(algo, stage, Layers([3, 2]), torch.float32)
        except Exception as error:
            raise ValueError(
                f"{algo.name}: {stage} fails in a trial step whose gradient is zero: {type(error).__name__}: {error}"
            ) from error
        if not is_record(up):
            raise ValueError(
                f"{algo.name}: {stage} returns a {type(up).__name__} as its upload; it must be a NamedTuple of tensors"
            )
        if form(new) != form(mem):
            raise ValueError(f"{algo.name}: {stage} returns a client record of {_told(new)}; init declares {_told(mem)}")


def _told(record: Any) -> str:
    found = form(record)
    return ", ".join(f"{name} {shape}" for name, shape, _ in found) if isinstance(found, list) else str(found or "no fields")
