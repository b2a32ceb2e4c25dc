"""An nn.Module seen as one flat vector of its trainable parameters, [d], and one of its buffers."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core import device as border
from fedkeel.core.torch_private import NORMS
from fedkeel.errors import NotFinite, OutOfRange


class Layers:
    """The parameter tensors of the model, in the order in which they lie in the flat vector.

    For methods that treat layers one by one, as LAMB does. Every list has one entry per parameter tensor.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        names: Sequence[str] = (),
        shapes: Sequence[Sequence[int]] = (),
        channels_last: bool = False,
    ) -> None:
        """Without names, layers are called by their numbers. Without shapes, each is a vector.

        channels_last: the numbers of a tensor [O, I, H, W] lie in the order [O, H, W, I].
        """
        self.sizes = list(sizes)
        self.names = list(names) or [str(i) for i in range(len(self.sizes))]
        self.shapes = [tuple(shape) for shape in shapes] or [(size,) for size in self.sizes]
        self.channels_last = channels_last

    def split(self, z: Tensor) -> list[Tensor]:
        """z [..., d] -> a view of every layer, each [..., *shape]."""
        parts = z.split_with_sizes(self.sizes, -1)
        return [self._shaped(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _shaped(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.channels_last and len(shape) == 4:
            outputs, inputs, height, width = shape
            filters: Tensor = part.unflatten(-1, (outputs, height, width, inputs))
            return filters.movedim(-1, -3)
        shaped: Tensor = part.unflatten(-1, shape or (1,))
        return shaped

    def in_order(self, z: Tensor) -> Tensor:
        """z [..., d] with every layer in its ordinary order, as `p.reshape(-1)` has it."""
        return torch.cat([part.flatten(z.dim() - 1) for part in self.split(z)], -1) if self.channels_last else z

    def norms(self, z: Tensor) -> Tensor:
        """z [..., d] -> the norm of every layer, [..., L], in float64."""
        parts = z.split_with_sizes(self.sizes, -1)
        return torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts], dim=-1).double()

    def means(self, z: Tensor) -> Tensor:
        """z [..., d] -> the mean of every layer, [..., L]."""
        return torch.stack([part.mean(-1) for part in z.split_with_sizes(self.sizes, -1)], dim=-1)

    def spread(self, values: Tensor) -> Tensor:
        """One value per layer, [..., L] -> that value in every entry of its layer, [..., d]."""
        parts = zip(values.unsqueeze(-1).unbind(-2), self.sizes, strict=True)
        return torch.cat([value.expand(*values.shape[:-1], size) for value, size in parts], -1)

    def scale(self, z: Tensor, factors: Tensor) -> Tensor:
        """Multiplies every layer of z [..., d] in place by its factor, [..., L]."""
        for part, factor in zip(z.split_with_sizes(self.sizes, -1), factors.to(z.dtype).unbind(-1), strict=True):
            part.mul_(factor.unsqueeze(-1))
        return z


def _members(module: nn.Module, kind: str) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """(name, owner, key there, tensor) of every entry in "_parameters" or "_buffers" of the modules, each place once."""
    for prefix, part in module.named_modules():
        for key, z in getattr(part, kind).items():
            if z is not None:
                yield f"{prefix}.{key}".lstrip("."), part, key, z


def copy_of(module: nn.Module) -> nn.Module:
    """A copy of the module. Tensors that it kept from its last forward pass are copied without their graph."""
    kept = [z for part in module.modules() for z in vars(part).values() if isinstance(z, Tensor) and not z.is_leaf]
    return copy.deepcopy(module, {id(z): z.detach().clone() for z in kept})


def _check_buffers(module: nn.Module) -> None:
    """Raises if a buffer would lose information: buffers are averaged and sent as float64."""
    for name, _, _, b in _members(module, "_buffers"):
        if b.is_complex():
            raise ValueError(f"model: its buffer {name} is complex; use torch.view_as_real to make it a real one")
        if not b.is_floating_point() and b.numel() and not torch.equal(b.double().to(b.dtype), b):
            raise ValueError(f"model: its buffer {name} has whole numbers beyond 2^53, which would be rounded")


MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def set_memory_format(module: nn.Module, name: str) -> None:
    """Puts the 4-d parameters of the module, which are the filters of 2-d convolutions, into this memory format."""
    for p in module.parameters():
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=MEMORY_FORMATS[name])


class FlatModel:
    """A module whose parameters are views of whatever flat vector it was last bound to.

    Binding copies nothing: an update of the bound vector in place is an update of the module. The order is that of
    `module.parameters()`, frozen parameters left out. If the module is in the memory format channels_last, the numbers of
    its 4-d parameters lie in that format inside the vector; `layers.in_order` gives the ordinary order.

    The buffers (normalisation statistics) are kept beside the vector. With `private`, the parameters of normalisation layers
    count as buffers, too: they are trained but never sent (FedBN).
    """

    def __init__(self, module: nn.Module, private: bool = False) -> None:
        self.module = module
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        norms = [m for m in module.modules() if isinstance(m, NORMS)] if private else []
        own = {id(p) for norm in norms for p in norm.parameters()}
        self.private = [p for _, p in named if id(p) in own]
        named = [(name, p) for name, p in named if id(p) not in own]
        if not named:
            raise ValueError("model: it has no trainable parameter")
        if any(nn.parameter.is_lazy(p) for p in module.parameters()):
            raise ValueError("model: its lazy layers have no shape yet; call it on a sample first")
        kinds = sorted({str(p.dtype) for _, p in named})
        if len(kinds) > 1:
            raise ValueError(f"model: its parameters have several dtypes, {', '.join(kinds)}; pass dtype= for one of them")
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.shapes = [p.shape for p in self.parameters]
        self.trained = (*self.parameters, *self.private)
        images = [p for p in module.parameters() if p.dim() == 4]
        last = any(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in images)
        self.memory_format = "channels_last" if last else "contiguous"
        self.layers = Layers([p.numel() for p in self.parameters], self.names, self.shapes, last)
        self.d = sum(self.layers.sizes)
        self.dtype = self.parameters[0].dtype
        self.device = self.parameters[0].device
        self.on_host = self.device.type == "cpu"
        # Every place of a parameter is listed here, also if it has several (tied weights), and no place is listed twice, as
        # it would be if a module was registered twice. Otherwise torch's functional_call would put the wrong tensors back.
        number = {id(p): i for i, p in enumerate(self.parameters)}
        self._places = [(name, number[id(p)]) for name, _, _, p in _members(module, "_parameters") if id(p) in number]
        self._own = [p.data for p in self.private]
        # Where the buffers are, and the first tensor of each: a model may replace its buffers by new tensors.
        found = {id(b): (part, key, b) for _, part, key, b in _members(module, "_buffers") if b.numel()}
        self._buffers = list(found.values())
        _check_buffers(module)
        wide = torch.float32 if self.device.type == "mps" else torch.float64  # MPS has no float64
        self._no_buffers = torch.zeros(0, dtype=wide, device=self.device)
        self.bound: Tensor | None = None
        self.bound_views: list[Tensor] = []
        self._recent: list[tuple[Tensor, list[Tensor]]] = []  # methods with several points return to the same few vectors

    def frozen(self) -> str | None:
        """A hash of the parameters that are not trained; None if there are none."""
        parts = [p.detach().cpu().reshape(-1) for p in self.module.parameters() if not p.requires_grad and p.numel()]
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest() if parts else None

    def copy(self) -> nn.Module:
        return copy_of(self.module)

    def views(self, w: Tensor) -> list[Tensor]:
        """The parameter tensors inside w [d]."""
        # A view of a 4-d tensor in its own shape would lose the strides by which torch recognises channels_last.
        return [part if shape else part.view(()) for part, shape in zip(self.layers.split(w), self.shapes, strict=True)]

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """The parameter tensors inside w [d] by name, for a `functional_call` with tie_weights=False."""
        views = self.views(w)
        return {name: views[i] for name, i in self._places}

    def named_buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers by name, for a `functional_call`."""
        return {name: b.clone() for name, _, _, b in _members(self.module, "_buffers")}

    def cast_nested(self, z: Any) -> Any:
        """`cast` for every tensor inside dictionaries, lists and tuples. Other values stay as they are."""
        if isinstance(z, Tensor):
            return self.cast(z)
        if isinstance(z, Mapping):
            return {key: self.cast_nested(part) for key, part in z.items()}
        return [self.cast_nested(part) for part in z] if isinstance(z, list | tuple) else z

    def cast(self, z: Tensor, prepare: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Samples or targets as the model takes them: on its device and in its memory format, after `prepare`.

        Floating-point numbers get the model's dtype, whole numbers keep theirs.
        """
        z = z if z.device == self.device else border.to_device(z, self.device)
        z = z if prepare is None else prepare(z)
        z = z.to(self.dtype) if z.is_floating_point() else z
        channels_last = self.layers.channels_last and z.dim() == 4
        return z.contiguous(memory_format=torch.channels_last) if channels_last else z

    # Between host memory and the model's device. A model on the CPU has no such border (core/device.py).

    def take(self, what: str, record: Any) -> Any:
        """A record on the model's device. what: its name for the error message."""
        return record if self.on_host else border.at_border(what, record, self.device)

    def check(self, what: str, record: Any) -> None:
        """Raises if a tensor of a record is not on the model's device."""
        if not self.on_host:
            border.check_device(what, record, self.device)

    def to_host(self, record: Any) -> Any:
        """A record in host memory. Wait for the device before you read it (core/device.py)."""
        return record if self.on_host else border.to_host(record)

    def vector(self) -> Tensor:
        """A copy of the parameters, [d]."""
        w = torch.empty(self.d, dtype=self.dtype, device=self.device)
        for part, p in zip(self.views(w), self.parameters, strict=True):
            part.copy_(p.detach())
        return w

    def bind(self, w: Tensor) -> None:
        """Makes w [d] the parameters of the module."""
        if w is self.bound:
            return
        found = next((pair for pair in self._recent if pair[0] is w), None)
        if found is None:
            found = (w, self.views(w))
            self._recent = [found, *self._recent[:2]]
        self.bound, self.bound_views = found
        for p, view in zip(self.parameters, self.bound_views, strict=True):
            p.data = view

    @property
    def has_buffers(self) -> bool:
        return bool(self._own or self._buffers)

    def read_buffers(self) -> Tensor:
        """A copy of all buffers (normalisation statistics), [b], in float64 so that counts survive."""
        if not self.has_buffers:
            return self._no_buffers
        now = [*self._own, *(part._buffers[key] for part, key, _ in self._buffers)]
        return torch.cat([b.detach().reshape(-1).double() for b in now])  # type: ignore[union-attr]

    def check_buffers(self, values: Tensor, before: Tensor) -> None:
        """Raises if a client has made buffers [b] that no model can have: not finite ones, or a negative variance or count.

        before: what the client received. Buffers may be infinite from the start (masks of attention).
        """
        lost, impossible = before.isfinite() & ~values.isfinite(), values < self._least
        if bool((lost | impossible).any()):
            if bool(lost.any()):
                raise NotFinite("the model's buffers are not finite")
            raise OutOfRange("the model's buffers have a negative variance or count")

    @functools.cached_property
    def _least(self) -> Tensor:
        """[b] the least value of every buffer: 0 for variances and counts of normalisation layers."""
        parts = [torch.full((b.numel(),), -math.inf) for b in self._own]
        for part, key, b in self._buffers:
            counted = isinstance(part, NORMS) and key in ("running_var", "num_batches_tracked")
            parts.append(torch.full((b.numel(),), 0.0 if counted else -math.inf))
        return torch.cat([self._no_buffers, *(z.to(self._no_buffers) for z in parts)])

    def write_buffers(self, values: Tensor) -> None:
        """Sets all buffers from values [b]; whole-number buffers are rounded."""
        for part, key, b in self._buffers:
            part._buffers[key] = b
        first = [*self._own, *(b for _, _, b in self._buffers)]
        for b, own in zip(first, values.split_with_sizes([b.numel() for b in first]), strict=True):
            b.copy_((own if b.is_floating_point() else own.round()).view(b.shape))
