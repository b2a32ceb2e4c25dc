"""Loss and gradient of dense networks, written out.

For linear layers with ReLU between them and the built-in cross-entropy, the few products below are all that has to be
computed. For a small network, the bookkeeping of autograd (or of vmap and grad) takes as long as these products. Here a
gradient is also written directly to the place where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core.flat import FlatModel
from fedkeel.core.torch_private import cross_entropy, has_hooks, relu_backward

Pair = tuple[Tensor, Tensor]  # weight [out, in] and bias [out] of a layer


def is_dense(model: FlatModel) -> bool:
    """Is it nothing but linear layers with ReLU between them, all trained, without hooks or replaced methods?"""
    parts = _without_flatten(model)
    linear = [part for part in parts[::2] if type(part) is nn.Linear and part.bias is not None]
    tidy = all(type(part) is nn.ReLU for part in parts[1::2]) and len(parts) == 2 * len(linear) - 1
    trained = len(model.parameters) == 2 * len(linear)  # a layer that is used twice counts once here
    return tidy and trained and not any(_watched(part) for part in model.module.modules())


def _without_flatten(model: FlatModel) -> list[nn.Module]:
    first, *others = _parts(model.module)
    return others if type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1) else [first, *others]


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The layers, in order."""
    if type(module) is nn.Sequential:
        for part in module:
            yield from _parts(part)
    else:
        yield module


def _watched(part: nn.Module) -> bool:
    """Does somebody listen to this layer, or replace its forward pass?"""
    return has_hooks(part) or "forward" in vars(part)


class Network:
    """What `Dense` and `DenseMany` have in common."""

    batch = 1  # dimensions of a batch before those of a sample

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self.flattens = len(_without_flatten(model)) < len(list(_parts(model.module)))

    def takes(self, x: Any, y: Tensor) -> bool:
        """Do these inputs and labels have the shapes that this code handles: one label per sample?"""
        if not isinstance(x, Tensor) or y.is_floating_point() or y.dim() != self.batch:
            return False
        return self.flattens or x.dim() == self.batch + 1


class Dense(Network):
    """One client at a time: parameters are a vector [d], batches x [B, ...] and y [B]."""

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, into: Sequence[Tensor]) -> Tensor:
        """Writes the gradient at w into the tensors of `into`, shaped like the parameters -> the loss."""
        self.model.bind(w)
        layers = list(_pairs(self.model.bound_views))
        loss, error, inputs = self._forward(layers, x, y)
        places = list(_pairs(into))
        for i in reversed(range(len(layers))):
            torch.mm(error.t(), inputs[i], out=places[i][0])
            torch.sum(error, 0, out=places[i][1])
            if i:
                error = relu_backward(torch.mm(error, layers[i][0]), inputs[i], 0)
        return loss

    def _forward(self, layers: Sequence[Pair], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(loss, its gradient for the outputs [B, classes], the inputs of every layer)."""
        inputs = [x.flatten(1)]
        for weight, bias in layers[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
        weight, bias = layers[-1]
        loss, error = cross_entropy(torch.addmm(bias, inputs[-1], weight.t()), y)
        return loss, error, inputs


def _pairs(tensors: Sequence[Tensor]) -> zip[Pair]:
    return zip(tensors[::2], tensors[1::2], strict=True)


class DenseMany(Network):
    """Many clients at once: parameters are vectors [S, d], batches x [S, B, ...] and y [S, B] with sample weights [S, B]."""

    batch = 2

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        self.minus_one = torch.full((1, 1, 1), -1.0, dtype=model.dtype, device=model.device)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(the gradients [S, d], the losses [S])."""
        parts = w.split_with_sizes(self.model.layers.sizes, 1)
        shapes = self.model.shapes[::2]
        layers = [(z.view(len(w), *shape), b.unsqueeze(1)) for (z, b), shape in zip(_pairs(parts), shapes, strict=True)]
        inputs = [x.flatten(2)]
        for matrix, bias in layers[:-1]:
            inputs.append(torch.baddbmm(bias, inputs[-1], matrix.mT).relu_())
        matrix, bias = layers[-1]
        logs = torch.baddbmm(bias, inputs[-1], matrix.mT).log_softmax(-1)
        target = y.unsqueeze(-1)
        losses = logs.gather(-1, target).squeeze(-1).mul_(weight).sum(1).neg_()
        error = logs.exp_().scatter_add_(-1, target, self.minus_one.expand_as(target)).mul_(weight.unsqueeze(-1))
        found = []
        for i in reversed(range(len(layers))):
            found += [error.sum(1), torch.bmm(error.mT, inputs[i]).flatten(1)]
            if i:
                error = relu_backward(torch.bmm(error, layers[i][0]), inputs[i], 0)
        return torch.cat(found[::-1], 1), losses
