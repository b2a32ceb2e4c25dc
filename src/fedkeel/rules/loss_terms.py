"""Terms that MOON and FedMLB add to the loss. They look into the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedkeel.core.features import Net, OwnLoss
from fedkeel.core.steps import Loss


def contrast(temperature: float) -> OwnLoss:
    """MOON's term: -log of the softmax share of cos(z, z_global) against cos(z, z_previous), mean over the batch."""

    def own(local: Net, now: Net, previous: Net, x: Any, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        z = local.features(x)
        near, far = (functional.cosine_similarity(z.flatten(1), net.features(x).flatten(1)) for net in (now, previous))
        return local.head(z), functional.softplus((far - near) / temperature).mean()

    return own


def branches(more: float, cross: float, distil: float, temperature: float) -> OwnLoss:
    """FedMLB's terms: branches of the local blocks 1..b followed by the frozen global ones, for every b before the last.

    more * the main path's cross-entropy + cross * their mean cross-entropy + distil * the mean KL(branch || main path).
    """

    def own(local: Net, fixed: Net, x: Any, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        z, ends = x, []
        for b in range(local.depth):
            z = local.block(b, z)
            if b + 1 < local.depth:
                end = z
                for later in range(b + 1, local.depth):
                    end = fixed.block(later, end)
                ends.append(end)
        total = more * loss(z, y) if more else torch.zeros((), dtype=torch.float32)
        main = functional.log_softmax(z / temperature, -1)
        for end in ends:
            branch = functional.log_softmax(end / temperature, -1)
            divergence = (branch.exp() * (branch - main)).sum(-1).mean()
            total = total + (cross * loss(end, y) + distil * divergence) / len(ends)
        return z, total

    return own
