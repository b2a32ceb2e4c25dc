"""LAMB: a direction whose every layer has the norm of that layer of the model."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.core.flat import Layers


def layer_unit(u: Tensor, x: Tensor, layers: Layers) -> Tensor:
    """LAMB's normalised direction: every layer of u gets the norm of that layer of x, or norm 1 if that is 0
    (docs/methods.md, rule R10)."""
    size = layers.norms(u)
    trust = layers.norms(x)
    trust = torch.where(trust > 0, trust, 1.0)
    return layers.scale(u, torch.where(size > 0, trust / torch.where(size > 0, size, 1.0), 0.0))
