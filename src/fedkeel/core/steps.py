"""The local steps of a round: each is a gradient oracle bound to one mini-batch.

`Steps` is what a method sees. `OneClient` (core/one_client.py) runs one client on [d]; `ManyClients` (core/many_clients.py)
runs a group of clients at once on [S, d].
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.dense_gradients import is_dense
from fedkeel.core.features import OwnLoss
from fedkeel.core.flat import FlatModel, Layers

Loss = Callable[[Any, Tensor], Tensor]  # loss(output, target) -> mean over the batch


@dataclass
class Objective:
    """What is minimised. It is the same for all clients."""

    model: FlatModel
    loss: Loss
    weight_decay: float = 0.0
    clip: float | None = None
    each: Loss | None = None  # each(output, target) -> [B] the loss of every sample, if it is known
    precision: str | None = None  # "bf16": forward passes and losses use torch's autocast; None: the dtype of the model

    def is_dense(self) -> bool:
        """Is it a network and a loss whose gradient core/dense_gradients.py writes out?"""
        return self.each is not None and self.precision is None and is_dense(self.model)

    def rounding(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass and its loss. Parameters and their gradients have the model's dtype in any case."""
        if self.precision is None:
            return contextlib.nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)


class Steps(ABC):
    """The K local steps of a client (or of a group with the same K): `for grad in steps: ... grad(w)`."""

    K: int
    t: int  # the round; -1 in the warm-up
    layers: Layers
    drawn: SimpleNamespace  # this client's roles from the method's `draw`, each [..., 1]
    objective: Objective
    seeds: Callable[[], Sequence[int]]  # one per client of this object, from (seed, round, client)

    def __len__(self) -> int:
        return self.K

    @abstractmethod
    def __iter__(self) -> Iterator[Grad]: ...

    @abstractmethod
    def copy(self, x: Tensor) -> Tensor:
        """x [d] or [..., d] -> a copy [..., d] that the method may change in place and return."""

    @abstractmethod
    def zeros(self) -> Tensor:
        """Zeros [..., d], which the method may change in place and return."""

    @abstractmethod
    def full_grad(self, w: Tensor) -> Tensor:
        """The gradient over all local data at w, weight decay included, [..., d]."""

    @abstractmethod
    def random(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        """What draw(generator) returns, [...] for one client, [S, ...] for a group.

        Each client has a generator of its own, on the CPU. Its numbers depend on the run's seed, the round and the client,
        so every engine draws the same ones. A survey draws the same numbers as the local steps of its round.
        """

    @functools.cached_property
    def generators(self) -> list[torch.Generator]:
        """The generator of every client; made when a method first draws, since most methods never do."""
        return [torch.Generator().manual_seed(seed) for seed in self.seeds()]

    def clip(self, u: Tensor) -> Tensor:
        """Scales u in place so that its norm is at most the run's `clip`, if the run has one (docs/methods.md, rule R6)."""
        if self.objective.clip is not None:
            norm = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
            u.mul_((self.objective.clip / norm.clamp_min(1e-30)).clamp_max(1.0))
        return u


class Grad(ABC):
    """The oracle of one mini-batch. The method may change what it returns, which is valid until the next step."""

    steps: Steps

    @abstractmethod
    def __call__(self, w: Tensor) -> Tensor:
        """The gradient at w, weight decay included, [..., d]."""

    def descend(self, w: Tensor, lr: float) -> None:
        """w -= lr * clip(grad(w)), in place: the plain step of SGD."""
        w.sub_(self.steps.clip(self(w)), alpha=lr)

    @abstractmethod
    def loss(self, w: Tensor) -> Tensor:
        """The loss at w on the same mini-batch, weight decay included, [..., 1]."""

    @abstractmethod
    def plus(self, own: OwnLoss, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """The gradient at w of the loss plus a weight [..., 1] times a term that the method adds, [..., d].

        own(net at w, *nets at the frozen points, x, y, loss) returns the output at w and the term (see core/features.py).
        Weight decay is included.
        """


def check_one_number(loss: Tensor) -> None:
    if loss.numel() != 1:
        raise ValueError(f"loss: it must be one number, the mean over the batch, but it has shape {list(loss.shape)}")
