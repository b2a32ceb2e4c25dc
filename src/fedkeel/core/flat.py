"""An nn.Module seen as one flat vector of its trainable parameters, [d], and one of its buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Layers:
    """Where each parameter tensor lies in the flat vector: for methods that treat layers one by one (LAMB)."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def norms(self, z: Tensor) -> Tensor:
        """z [..., d] -> the norm of every layer, [..., L], in float64."""
        parts = z.split_with_sizes(self.sizes, -1)
        return torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts], dim=-1).double()

    def scale(self, z: Tensor, factors: Tensor) -> Tensor:
        """Multiplies every layer of z [..., d] in place by its factor, [..., L]."""
        for part, factor in zip(z.split_with_sizes(self.sizes, -1), factors.to(z.dtype).unbind(-1), strict=True):
            part.mul_(factor.unsqueeze(-1))
        return z


class FlatModel:
    """A module whose parameters are views of whatever flat vector it was last bound to.

    Binding copies nothing: an update of the bound vector in place is an update of the module. The order is that of
    `module.parameters()`, frozen parameters left out.

    Beside it stand the buffers (normalisation statistics). With `private`, the parameters of batch normalisation belong to
    them and not to the vector: they are trained, but never sent (FedBN).
    """

    def __init__(self, module: nn.Module, private: bool = False) -> None:
        self.module = module
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._NormBase)] if private else []
        own = {id(p) for norm in norms for p in norm.parameters()}
        self.private = [p for _, p in named if id(p) in own]
        named = [(name, p) for name, p in named if id(p) not in own]
        if not named:
            raise ValueError("model: it has no trainable parameter")
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.shapes = [p.shape for p in self.parameters]
        self.trained = (*self.parameters, *self.private)
        self.layers = Layers([p.numel() for p in self.parameters])
        self.d = sum(self.layers.sizes)
        self.dtype = self.parameters[0].dtype
        self.device = self.parameters[0].device
        self._buffers = [p.data for p in self.private] + [b for b in module.buffers() if b.numel()]
        self.bound: Tensor | None = None
        self.bound_views: list[Tensor] = []
        self._recent: list[tuple[Tensor, list[Tensor]]] = []  # methods with several points come back to the same few

    def views(self, w: Tensor) -> list[Tensor]:
        """The parameter tensors inside w [d]."""
        parts = w.split_with_sizes(self.layers.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def vector(self) -> Tensor:
        """A copy of the parameters, [d]."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

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
        return bool(self._buffers)

    def read_buffers(self) -> Tensor:
        """A copy of all buffers (normalisation statistics), [b], in float64 so that counts survive."""
        if not self._buffers:
            return torch.zeros(0, dtype=torch.float64)
        return torch.cat([b.detach().reshape(-1).double() for b in self._buffers])

    def write_buffers(self, values: Tensor) -> None:
        """Sets all buffers from values [b]; whole-number buffers are rounded."""
        for b, part in zip(self._buffers, values.split_with_sizes([b.numel() for b in self._buffers]), strict=True):
            b.copy_((part if b.is_floating_point() else part.round()).view(b.shape))
