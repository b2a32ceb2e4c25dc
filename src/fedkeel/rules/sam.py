"""Sharpness-aware minimisation (SAM): the gradient at the worst point near the model."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.core.steps import Grad


def unit(u: Tensor) -> Tensor:
    """u / ||u|| over the last dimension, and 0 where u is 0 (docs/methods.md, rule R10). A new tensor."""
    norm = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    return u * torch.where(norm > 0, 1 / norm, 0.0)


def sam_gradient(grad: Grad, w: Tensor, rho: float) -> Tensor:
    """The gradient at w + rho g / ||g||, where g is the gradient at w on the same mini-batch."""
    return grad(torch.add(w, unit(grad(w)), alpha=rho))
