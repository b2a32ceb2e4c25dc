"""The local steps of a group of clients at once, on [S, d].

The gradient is vmapped or written out. The rest of a method runs on the stacked tensors without change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, vmap

from fedkeel.core.dense_gradients import DenseMany
from fedkeel.core.features import Net, OwnLoss
from fedkeel.core.steps import Grad, Objective, Steps, check_one_number
from fedkeel.core.torch_private import version


class ManyOracle:
    """Losses and gradients of many clients at once: parameters [S, d], batches [S, B, ...] and sample weights [S, B]."""

    def __init__(self, objective: Objective, compiled: bool = False) -> None:
        self.objective = objective
        self.by_autograd: Callable[..., Any] = grad_and_value(self._total, has_aux=True)
        if compiled:
            self.by_autograd = torch.compile(self.by_autograd, dynamic=False)
        self.dense = DenseMany(objective.model) if objective.is_dense() and not compiled else None

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(the gradients [S, d], the losses [S])."""
        if self.dense and self.dense.takes(x, y):
            return self.dense.gradient(w, x, y, weight)
        found, (_, losses) = self.by_autograd(w, x, y, weight)
        return found, losses

    def value(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The loss of every client, [S]."""
        output, each = self.outputs(w, x), self.objective.each
        if each is None:  # a loss of the user takes whole batches; these have no padding
            return vmap(self._loss)(output, y) * weight.sum(-1)
        # The loss of each sample, so that the padding of short batches does not enter the mean.
        return (each(output.flatten(0, 1), y.flatten(0, 1)).view(weight.shape) * weight).sum(-1)

    def outputs(self, w: Tensor, x: Tensor) -> Any:
        """What the model returns for every client, [S, B, ...]."""
        model = self.objective.model

        def of_one(w: Tensor, x: Tensor) -> Any:
            return functional_call(model.module, model.named(w), (x,), tie_weights=False)

        return vmap(of_one)(w, x)

    def _loss(self, output: Any, y: Tensor) -> Tensor:
        """The loss of one client's batch, []."""
        loss = self.objective.loss(output, y)
        check_one_number(loss)
        return loss.reshape(())

    def _total(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over clients. Its gradient is that of every client, since none uses another's parameters."""
        losses = self.value(w, x, y, weight)
        return losses.sum(), losses

    def plus(
        self, own: OwnLoss, scale: Tensor, w: Tensor, points: Sequence[Tensor], data: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(gradients [S, d] of the loss plus a scale [S, 1] times the term that a method adds, losses [S]).

        points: where the frozen models are, each [S, d].
        """
        model, loss, padded = self.objective.model, self.objective.loss, self.objective.each is not None

        def both(nets: Sequence[Net], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            output, term = own(*nets, x, y, loss)
            return self._loss(output, y), term.reshape(())

        def weighted(
            w: Tensor, scale: Tensor, points: Sequence[Tensor], x: Tensor, y: Tensor, weight: Tensor
        ) -> tuple[Tensor, Tensor]:
            nets = [Net(model, z) for z in (w, *points)]
            if padded:
                base, term = vmap(lambda a, b: both(nets, a.unsqueeze(0), b.unsqueeze(0)))(x, y)
            else:
                base, term = both(nets, x, y)
            base, term = (base * weight).sum(), (term * weight).sum()
            return base + scale.reshape(()) * term, base

        return vmap(grad(weighted, has_aux=True))(w, scale, tuple(points), *data)  # type: ignore[no-any-return]


@dataclass
class ManyClients(Steps):
    """The steps of a group of clients that all do K of them, on [S, d]."""

    objective: Objective
    t: int
    oracle: ManyOracle
    S: int
    batches: Sequence[tuple[Tensor, Tensor, Tensor]]  # (x [S, B, ...], y [S, B, ...], weight [S, B]) of every step
    everything: Callable[[], Sequence[tuple[Tensor, Tensor, Tensor]]]  # fetches all local data in such pieces
    drawn: SimpleNamespace = field(default_factory=SimpleNamespace)
    losses: list[Tensor] = field(default_factory=list)  # [S] each
    seeds: Callable[[], Sequence[int]] = lambda: [0]

    def __post_init__(self) -> None:
        self.K = len(self.batches)
        self.layers = self.objective.model.layers

    def __iter__(self) -> Iterator[Grad]:
        for x, y, weight in self.batches:
            yield ManyGrad(self, x, y, weight)

    def stacked(self, w: Tensor) -> Tensor:
        return w if w.dim() == 2 else w.expand(self.S, -1)

    def copy(self, x: Tensor) -> Tensor:
        return self.stacked(x).clone()

    def zeros(self) -> Tensor:
        model = self.objective.model
        return torch.zeros(self.S, model.d, dtype=model.dtype, device=model.device)

    def random(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        return torch.stack([draw(generator) for generator in self.generators]).to(self.objective.model.device)

    def full_grad(self, w: Tensor) -> Tensor:
        w = self.stacked(w)
        total = w * self.objective.weight_decay
        for x, y, weight in self.everything():
            total += self.oracle.gradient(w, x, y, weight)[0]
        return total


class ManyGrad(Grad):
    steps: ManyClients

    def __init__(self, steps: ManyClients, x: Tensor, y: Tensor, weight: Tensor) -> None:
        self.steps, self.data, self.fresh = steps, (x, y, weight), True
        self.known: tuple[Tensor, int | str, Tensor] | None = None  # points, their version, the losses there

    def __call__(self, given: Tensor) -> Tensor:
        w = self.steps.stacked(given)
        gradient, losses = self.steps.oracle.gradient(w, *self.data)
        self.known = given, version(given), losses
        return self._counted(w, gradient, losses)

    def plus(self, own: OwnLoss, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        w = self.steps.stacked(w)
        scale = torch.as_tensor(weight, dtype=w.dtype, device=w.device).expand(self.steps.S, 1)
        points = [self.steps.stacked(z) for z in frozen]
        return self._counted(w, *self.steps.oracle.plus(own, scale, w, points, self.data))

    def _counted(self, w: Tensor, gradient: Tensor, losses: Tensor) -> Tensor:
        """The gradient with weight decay. The history gets the losses of the first gradient of a step."""
        if self.fresh:
            self.steps.losses.append(losses)
        self.fresh = False
        decay = self.steps.objective.weight_decay
        return gradient.add_(w, alpha=decay) if decay else gradient

    def loss(self, given: Tensor) -> Tensor:
        w = self.steps.stacked(given)
        if self.known and self.known[0] is given and self.known[1] == version(given):
            value = self.known[2]
        else:
            value = self.steps.oracle.value(w, *self.data)
        return (value + 0.5 * self.steps.objective.weight_decay * w.square().sum(-1)).unsqueeze(-1)
