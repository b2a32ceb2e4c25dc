"""The signs of a vector, 32 of them in one number."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS = 32


def packed_signs(u: Tensor) -> Tensor:
    """u [..., d] -> [..., ceil(d / 32)] int32. A bit is 1 where u >= 0."""
    bits = pad((u >= 0).to(torch.int32), (0, -u.shape[-1] % BITS)).unflatten(-1, (-1, BITS))
    packed: Tensor = (bits << _places(u)).sum(-1, dtype=torch.int32)
    return packed


def unpacked_signs(packed: Tensor, like: Tensor) -> Tensor:
    """packed [..., ceil(d / 32)] -> [..., d], 1 or -1. like: a vector [d] with the wanted length and dtype."""
    bits = (packed.unsqueeze(-1) >> _places(packed)) & 1
    return bits.flatten(-2)[..., : like.shape[-1]].to(like.dtype).mul_(2).sub_(1)


def _places(z: Tensor) -> Tensor:
    return torch.arange(BITS, dtype=torch.int32, device=z.device)
