"""Runs a function of tensors from a recording of its operations.

What vmap, grad and autograd decide anew in every call takes several times as long as the arithmetic of a small network. The
recording holds the operations that they ended in, so its numbers are the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from fedkeel.core.flat import FlatModel

Key = tuple[Any, ...]
aten = torch.ops.aten
VIEWS = (aten.expand.default, aten.view.default, aten._unsafe_view.default)
OFTEN = 50  # calls before one is recorded, for recording takes as long as many of them
# Layers whose operations depend on the shape of the input alone; one that is derived from them may do anything.
PLAIN = {
    nn.Sequential,
    nn.Flatten,
    nn.Identity,
    nn.Linear,
    nn.Conv2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.GroupNorm,
    nn.LayerNorm,
}
PLAIN |= {nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.LeakyReLU}


def record(function: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """What `function` did with these inputs, to be done with others of the same shapes and strides."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second, which short runs should not pay

    module = make_fx(lambda *given: function(*given))(*inputs)
    for node in module.graph.nodes:
        source = _same_as(node)
        if source is not None:
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module.forward


def _same_as(node: fx.Node) -> fx.Node | None:
    """An earlier tensor that is the same: a view of the shape it has, or turned twice; a fourth of all operations."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if node.target is aten.detach.default:
        return source
    if node.target is aten.t.default and source.target is aten.t.default:
        return source.args[0]  # type: ignore[return-value]
    if node.target in VIEWS and node.meta["tensor_meta"].shape == source.meta["tensor_meta"].shape:
        return source
    return None


def _key(inputs: Sequence[Tensor]) -> Key:
    return tuple((z.shape, z.stride(), z.dtype) for z in inputs)


class Traced:
    """`function`, played back from a recording for inputs whose shapes and strides have come often enough to repay it.

    For functions whose operations depend on nothing but these.
    """

    def __init__(self, function: Callable[..., Any], after: int = OFTEN) -> None:
        self.function, self.after = function, after
        self.calls: Counter[Key] = Counter()
        self.recordings: dict[Key, Callable[..., Any]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        key = _key(inputs)
        if key in self.recordings:
            return self.recordings[key](*inputs)
        self.calls[key] += 1
        if self.calls[key] > self.after:
            self.recordings[key] = record(self.function, inputs)
        return self.function(*inputs)


class Recorder:
    """Loss and gradient of a plain model, recorded for those shapes of batches that come often."""

    def __init__(self, model: FlatModel, loss: Callable[[Any, Tensor], Tensor]) -> None:
        self.model, self.loss = model, loss
        self.calls: Counter[Key] = Counter()
        self.recordings: dict[Key, Callable[..., Any]] = {}

    def __call__(self, x: Tensor, y: Tensor, eager: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """(loss, a gradient per parameter) at the model's present parameters; eager: computes the same."""
        key = _key((x, y))
        play = self.recordings.get(key)
        if play is not None:
            return play(*self.model.bound_views, x, y)  # type: ignore[no-any-return]
        found = eager()
        self.calls[key] += 1
        if self.calls[key] == OFTEN:
            inputs = (*self.model.bound_views, x, y)
            play = record(self._value_and_gradients, inputs)
            # The bits must not depend on whether a process has recorded already.
            if all(torch.equal(a, b) for a, b in zip(play(*inputs), found, strict=True)):
                self.recordings[key] = play
        return found

    def _value_and_gradients(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        *parameters, x, y = inputs
        leaves = [p.detach().requires_grad_() for p in parameters]
        with torch.enable_grad():
            loss = self.loss(functional_call(self.model.module, dict(zip(self.model.names, leaves, strict=True)), (x,)), y)
        return (loss.detach(), *torch.autograd.grad(loss, leaves))


def is_plain(model: FlatModel) -> bool:
    """Do the model's operations depend on the shape of its input alone, as far as can be known?"""
    parts = list(model.module.modules())
    hooked = any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
    all_trained = len(model.parameters) == len(list(model.module.parameters()))
    return not hooked and all_trained and all(type(part) in PLAIN and "forward" not in vars(part) for part in parts)
