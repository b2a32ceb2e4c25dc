"""Steps of unit length."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_step(w: Tensor, u: Tensor, lr: float) -> None:
    """w -= lr u / ||u|| over the last dimension, in place. Where u is 0, nothing moves (docs/methods.md, rule R10)."""
    norm = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    w.addcmul_(u, torch.where(norm > 0, 1 / norm, 0.0), value=-lr)
