"""A method's local work without data: what its upload looks like, and so what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Record, down_record
from fedkeel.core.features import OwnLoss
from fedkeel.core.flat import Layers
from fedkeel.core.steps import Grad, Objective, Steps


class DryGrad(Grad):
    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __call__(self, w: Tensor) -> Tensor:
        return torch.zeros_like(w)

    def of(self, own: OwnLoss, w: Tensor, *frozen: Tensor) -> Tensor:
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


def dry_run(algo: Algorithm, stage: str, layers: Layers, dtype: torch.dtype) -> Record:
    """The upload record of `stage` ("client" or "warmup") for a model with these layers; only its shapes mean anything."""
    x = torch.zeros(sum(layers.sizes), dtype=dtype)
    server, mem = algo.init(x)
    roles = algo.draw(np.random.default_rng(0), [0])
    work: Any = getattr(algo, stage)
    up, _ = work(down_record(algo, server), mem, DrySteps(layers, list(roles), dtype))
    return up
