"""The local steps of a round: each is a gradient oracle bound to one mini-batch.

`Steps` and `Grad` are what a method sees. `OneClient` and `OneGrad` carry them out for one client, on [d], with the module's
own forward and backward. `ManyClients` (core/many_clients.py) runs a group of clients at once, on [S, d].
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedkeel.core.dense_gradients import Dense, is_dense
from fedkeel.core.flat import FlatModel, Layers
from fedkeel.core.torch_private import add_each, backward, copy_each, subtract_each, version

if TYPE_CHECKING:
    from fedkeel.core.features import FrozenNet, Net, OwnLoss

Loss = Callable[[Any, Tensor], Tensor]  # loss(output, target) -> mean over the batch
Step = Callable[[nn.Module, Any], Tensor]  # step(model, batch) -> mean over the batch
# A full gradient takes its samples in pieces. A piece has at most CHUNK samples and at most NUMBERS input numbers, because a
# network keeps thousands of bytes per number for its backward pass.
CHUNK = 1024
NUMBERS = 2**18
TOKEN = 64  # a token counts as this many numbers, since the network turns it into a vector


@dataclass
class Objective:
    """What is minimised. It is the same for all clients."""

    model: FlatModel
    loss: Loss
    weight_decay: float = 0.0
    clip: float | None = None
    each: Loss | None = None  # each(output, target) -> [B] the loss of every sample, if it is known
    precision: str | None = None  # "bf16": forward passes and losses use torch's autocast; None: the dtype of the model
    step: Step | None = None  # the user's own code for a batch, in the place of `loss`

    def value(self, x: Any, y: Any) -> Tensor:
        """The loss of a batch at the point to which the model is bound."""
        if self.step is not None:
            return self.step(self.model.module, whole_batch(x, y))
        return self.loss(self.model.module(x), y)

    def is_dense(self) -> bool:
        """Is it a network and a loss whose gradient core/dense_gradients.py writes out?"""
        return self.each is not None and self.precision is None and is_dense(self.model)

    def rounding(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass and its loss. Parameters and their gradients have the model's dtype in any case."""
        if self.precision is None:
            return contextlib.nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)


def whole_batch(x: Any, y: Any) -> Any:
    """What a user's step gets: the pair (x, y). If the data have no targets of their own, x is the whole batch."""
    return x if y is None else (x, y)


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
        """The loss at w on the same mini-batch, weight decay included, [..., 1].

        Right after a gradient at w it costs nothing: the forward pass of the gradient has computed it.
        """

    @abstractmethod
    def plus(self, own: OwnLoss, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """The gradient at w of the loss plus a weight [..., 1] times a term that the method adds, [..., d].

        own(net at w, *nets at the frozen points, x, y, loss) returns the output at w and the term (see core/features.py).
        Weight decay is included.
        """


def check_one_number(loss: Tensor) -> None:
    if loss.numel() != 1:
        raise ValueError(f"loss: it must be one number, the mean over the batch, but it has shape {list(loss.shape)}")


# One client ----------------------------------------------------------------------------------------------------------


class Workspace:
    """Scratch vectors reused by every client of this process.

    They are then still in the CPU's cache, and the model's parameters are already views of them.
    """

    def __init__(self, objective: Objective) -> None:
        self.model = model = objective.model
        self.dense = Dense(model) if objective.is_dense() else None
        self.gradients: list[tuple[Tensor, list[Tensor]]] = []  # for the first, second, ... gradient of a step
        self.points: list[Tensor] = []  # for the first, second, ... copy that a client makes
        self.frozen: list[FrozenNet] = []  # the model at the first, second, ... point where a method does not train it

    def gradient(self, call: int) -> tuple[Tensor, list[Tensor]]:
        if call == len(self.gradients):
            flat = self._vector()
            self.gradients.append((flat, self.model.views(flat)))
        return self.gradients[call]

    def point(self, call: int) -> Tensor:
        if call == len(self.points):
            self.points.append(self._vector())
        return self.points[call]

    def _vector(self) -> Tensor:
        return torch.empty(self.model.d, dtype=self.model.dtype, device=self.model.device)


@dataclass
class OneClient(Steps):
    """The steps of one client, on [d], with the module's own forward and backward."""

    objective: Objective
    t: int
    batches: Sequence[tuple[Any, Tensor]]  # (x, y) of every step
    everything: Callable[[], Iterable[tuple[Any, Any, float]]]  # all local data in pieces (x, y, share), for few methods
    workspace: Workspace
    drawn: SimpleNamespace = field(default_factory=SimpleNamespace)
    losses: list[Tensor] = field(default_factory=list)  # the first loss of every step, for the history
    seeds: Callable[[], Sequence[int]] = lambda: [0]

    def __post_init__(self) -> None:
        self.K = len(self.batches)
        self.layers = self.objective.model.layers
        self.points = 0

    def __iter__(self) -> Iterator[Grad]:
        for x, y in self.batches:
            yield OneGrad(self, x, y)

    def copy(self, x: Tensor) -> Tensor:
        return self._point().copy_(x)

    def zeros(self) -> Tensor:
        return self._point().zero_()

    def random(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        return draw(*self.generators).to(self.objective.model.device)

    def _point(self) -> Tensor:
        self.points += 1
        return self.workspace.point(self.points - 1)

    def full_grad(self, w: Tensor) -> Tensor:
        total = torch.zeros_like(w)
        views = self.objective.model.views(total)
        for x, y, share in self.everything():
            _, grads = self.backward(w, x, y, still=True)
            add_each(views, grads[: len(views)], alpha=share)
        return total.add_(w, alpha=self.objective.weight_decay) if self.objective.weight_decay else total

    def frozen_net(self, number: int, w: Tensor) -> Net:
        """The model at w, which is the point with this number among those at which a method does not train."""
        from fedkeel.core.features import FrozenNet, Net

        model, nets = self.objective.model, self.workspace.frozen
        if model.has_buffers:  # the statistics move with every step
            return Net(model, w)
        if number == len(nets):
            nets.append(FrozenNet(model))
        return nets[number].at(w, self.batches, at_once(self.batches[0][0]))

    def backward(
        self, w: Tensor, x: Any, y: Tensor, still: bool, look: Callable[[], tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(loss, a gradient per parameter) at w.

        still: the pass must not change the model's statistics.
        look: called while the model is at w; returns its output, and a term to add to the loss for the gradient.
        """
        model = self.objective.model
        model.bind(w)
        kept = model.read_buffers() if still and model.has_buffers else None
        with torch.enable_grad(), self.objective.rounding():
            if look is None:
                total = loss = self.objective.value(x, y)
            else:
                output, more = look()
                loss = self.objective.loss(output, y)
                total = loss + more
        if not loss.requires_grad:
            raise ValueError("loss: it does not depend on the trained parameters; is it detached somewhere?")
        found = gradients(total, model.trained)
        if kept is not None:
            model.write_buffers(kept)
        return loss.detach(), found


def in_pieces(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Samples in pieces for a full gradient: (x, y, its share of the samples)."""
    pieces = -(-len(y) // at_once(x))  # of equal size: batch normalisation fails on a piece of one sample
    for a, b in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
        yield a, b, len(b) / len(y)


def at_once(x: Any) -> int:
    """How many samples like x[0] a full gradient takes in one piece."""
    if not isinstance(x, Tensor):  # a dictionary of tensors
        return 1
    return max(1, min(CHUNK, NUMBERS // max(1, x[0].numel() * (1 if x.is_floating_point() else TOKEN))))


def gradients(loss: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradient of the loss for each parameter, zero for those on which it does not depend."""
    check_one_number(loss)
    found = backward(loss, parameters)
    return tuple(torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True))


class OneGrad(Grad):
    steps: OneClient

    def __init__(self, steps: OneClient, x: Any, y: Tensor) -> None:
        self.steps, self.x, self.y, self.calls = steps, x, y, 0
        self.known: tuple[Tensor, int | str, Tensor] | None = None  # a point, its version, the loss there
        dense = steps.workspace.dense
        self.dense = dense if dense and dense.takes(x, y) else None

    def __call__(self, w: Tensor) -> Tensor:
        flat, views = self.steps.workspace.gradient(self.calls)
        if self.dense:
            loss = self.dense.gradient(w, self.x, self.y, views)
            self._count(loss)
        else:
            loss, grads = self._pieces(w)
            copy_each(views, grads)
        self.known = w, version(w), loss
        return self._decayed(flat, w)

    def plus(self, own: OwnLoss, w: Tensor, *frozen: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        from fedkeel.core.features import Net  # few methods look into the model

        model, loss = self.steps.objective.model, self.steps.objective.loss

        def look() -> tuple[Tensor, Tensor]:
            others = (self.steps.frozen_net(number, z) for number, z in enumerate(frozen))
            output, term = own(Net(model), *others, self.x, self.y, loss)
            return output, (weight * term).reshape(())

        flat, views = self.steps.workspace.gradient(self.calls)
        copy_each(views, self._pieces(w, look)[1])
        return self._decayed(flat, w)

    def _decayed(self, flat: Tensor, w: Tensor) -> Tensor:
        decay = self.steps.objective.weight_decay
        return flat.add_(w, alpha=decay) if decay else flat

    def descend(self, w: Tensor, lr: float) -> None:
        objective, model = self.steps.objective, self.steps.objective.model
        if model.private:
            self._descend_all(w, lr)
        elif self.dense or objective.weight_decay or objective.clip:
            super().descend(w, lr)
        else:  # the same numbers, without copying the gradients into one flat vector
            _, grads = self._pieces(w)  # binds the model to w
            subtract_each(model.bound_views, grads, alpha=lr)

    def _descend_all(self, w: Tensor, lr: float) -> None:
        """The same step for the parameters that are sent and for the private ones. Both are clipped as one vector."""
        objective, own = self.steps.objective, [p.data for p in self.steps.objective.model.private]
        shared = self(w)
        flat = torch.cat(
            [shared, *((g + objective.weight_decay * p).flatten() for g, p in zip(self.private, own, strict=True))]
        )
        parts = self.steps.clip(flat).split_with_sizes([len(shared), *(p.numel() for p in own)])
        w.sub_(parts[0], alpha=lr)
        for p, g in zip(own, parts[1:], strict=True):
            p.sub_(g.view(p.shape), alpha=lr)

    def _pieces(
        self, w: Tensor, look: Callable[[], tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(loss, a gradient per parameter)."""
        # A step moves the normalisation statistics once, to the batch at its first point: others are not trained there.
        loss, grads = self.steps.backward(w, self.x, self.y, still=self.calls > 0, look=look)
        self._count(loss)
        if self.steps.objective.model.private:
            shared = len(self.steps.objective.model.parameters)
            grads, self.private = grads[:shared], grads[shared:]
        return loss, grads

    def _count(self, loss: Tensor) -> None:
        """Counts the gradients of this step. The history gets the loss of the first one."""
        if self.calls == 0:
            self.steps.losses.append(loss)
        self.calls += 1

    def loss(self, w: Tensor) -> Tensor:
        if self.known and self.known[0] is w and self.known[1] == version(w):
            loss = self.known[2]
        else:
            loss = self._loss_of_batch(w)
        return (loss + 0.5 * self.steps.objective.weight_decay * w.square().sum()).reshape(1)

    def _loss_of_batch(self, w: Tensor) -> Tensor:
        from fedkeel.core.features import Net

        objective = self.steps.objective
        with objective.rounding():
            net = Net(objective.model, w)
            if objective.step is not None:
                return net.step(objective.step, whole_batch(self.x, self.y))
            return objective.loss(net(self.x), self.y)
