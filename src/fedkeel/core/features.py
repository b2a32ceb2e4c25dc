"""Models seen from the inside, for methods whose loss needs more than the output (MOON, FedMLB).

A model offers its inside in one of two ways:

- `forward_features(x)` and `forward_head(z)`, with forward = head of features;
- blocks: an attribute `blocks`, a sequence of modules with forward = one after the other. An nn.Sequential is its own
  sequence of blocks. Its features are what goes into the last block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkeel.core.flat import FlatModel
from fedkeel.core.torch_private import BATCH_NORMS, DROPOUTS, version

# own(local, *frozen, x, y, loss) -> (output of local for x, the term: a mean over the samples). local and frozen are the
# model at several points. The term needs the output anyway; returning it saves a second forward pass for the task's loss.
OwnLoss = Callable[..., tuple[Tensor, Tensor]]


class Net:
    """The model at one point, for the term that a method adds to the loss.

    Without w it is the model at the point to which it is bound. With w, a call does not change the model's statistics.
    """

    def __init__(self, model: FlatModel, w: Tensor | None = None) -> None:
        self.caller = Caller(model.module)
        values = {} if w is None else model.named(w) | model.named_buffers()
        self.values: dict[str, Tensor] = {f"module.{name}": z for name, z in values.items()}

    def _call(self, what: str, *args: Any) -> Any:
        if not self.values:
            return self.caller(what, *args)
        return functional_call(self.caller, self.values, (what, *args), tie_weights=False)

    def __call__(self, x: Any) -> Tensor:
        """The output."""
        return self._call("output", x)  # type: ignore[no-any-return]

    def features(self, x: Any) -> Tensor:
        """What goes into the last layer, [n, ...]."""
        return self._call("features", x)  # type: ignore[no-any-return]

    def head(self, z: Tensor) -> Tensor:
        """The output for given features."""
        return self._call("head", z)  # type: ignore[no-any-return]

    def block(self, b: int, x: Any) -> Tensor:
        """The output of block b for its input."""
        return self._call("block", b, x)  # type: ignore[no-any-return]

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(blocks_of(self.caller.module))


class FrozenNet(Net):
    """The model at a point that stays the same during the local steps of a client. For models without buffers.

    A copy of the module is bound to the point. torch's functional_call would exchange all parameters in every call.
    """

    def __init__(self, model: FlatModel) -> None:
        self.copy = FlatModel(model.copy())
        for p in self.copy.parameters:
            p.requires_grad_(False)
        self.caller, self.values = Caller(self.copy.module), {}
        parts = self.copy.module.modules()
        # Samples together have the features that they have alone, unless a layer draws numbers or looks at the batch.
        self.together = not any(isinstance(part, (BATCH_NORMS, DROPOUTS)) for part in parts)
        self.batches: Sequence[tuple[Any, Tensor]] = ()
        self.version: int | str = 0
        self.known: dict[int, Tensor] = {}  # id of a batch -> its features

    def at(self, w: Tensor, batches: Sequence[tuple[Any, Tensor]], most: int) -> FrozenNet:
        """The model at w, for a client with these batches.  most: samples for which features are computed at once."""
        if self.copy.bound is not w or self.batches is not batches or self.version != version(w):
            self.copy.bind(w)
            self.batches, self.version, self.known = batches, version(w), {}
        self.most = most
        return self

    def features(self, x: Any) -> Tensor:
        """Computes the features of the next batches, too: products of many samples are faster than many small ones."""
        if id(x) not in self.known:
            group = self._group(x)
            if len(group) > 1:
                parts = super().features(torch.cat(group)).split([len(z) for z in group])
                self.known = {id(batch): part for batch, part in zip(group, parts, strict=True)}
            else:
                self.known = {id(x): super().features(x)}
        return self.known[id(x)]

    def _group(self, x: Any) -> list[Any]:
        """x, and the batches after it as long as all together have at most `most` samples."""
        group, count = [x], len(x)
        if not self.together or not isinstance(x, Tensor):
            return group
        later = [batch for batch, _ in self.batches]
        place = next((k for k, batch in enumerate(later) if batch is x), len(later))
        for batch in later[place + 1 :]:
            count += len(batch)
            if count > self.most or batch is x:  # the same batch again: every step sees all data
                break
            group.append(batch)
        return group


class Caller(nn.Module):
    """A module whose forward calls any method of a model: torch's functional_call can only call `forward`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, what: str, *args: Any) -> Any:
        module = self.module
        if what == "output":
            return module(*args)
        if what == "block":
            return blocks_of(module)[args[0]](args[1])
        if _offers_features(module):
            return getattr(module, f"forward_{what}")(*args)
        *body, last = blocks_of(module)
        if what == "head":
            return last(*args)
        (z,) = args
        for part in body:
            z = part(z)
        return z


def _offers_features(module: nn.Module) -> bool:
    return hasattr(module, "forward_features") and hasattr(module, "forward_head")


def blocks_of(module: nn.Module) -> Sequence[nn.Module]:
    """The blocks that a model declares, or an empty list."""
    return list(getattr(module, "blocks", module if isinstance(module, nn.Sequential) else ()))


def check_inside(module: nn.Module, needs: str, method: str) -> None:
    """Refuses a model that does not show what the method needs: "features", "blocks" or nothing."""
    blocks = "an attribute `blocks`, a list of modules applied one after the other (an nn.Sequential works as it is)"
    if needs == "blocks" and len(blocks_of(module)) < 2:
        raise ValueError(f"model: {method} needs the blocks of the model; give {type(module).__name__} {blocks}")
    if needs == "features" and not _offers_features(module) and len(blocks_of(module)) < 2:
        methods = "methods forward_features(x) and forward_head(z), or"
        raise ValueError(f"model: {method} needs the features of the model; give {type(module).__name__} {methods} {blocks}")
