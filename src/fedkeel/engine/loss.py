"""The default loss, cross-entropy, and the objective of a run."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from fedkeel.core.flat import FlatModel
from fedkeel.core.steps import Loss, Objective
from fedkeel.data.federation import function_identity


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over the last dimension of the output. In sequences every position counts like a sample."""
    if output.dim() > 2:
        output, target = output.flatten(0, -2), target.flatten()
    return functional.cross_entropy(output, target.long())


def cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of every sample, [B, ..., classes] -> [B]."""
    if output.dim() == 2:
        return functional.cross_entropy(output, target, reduction="none")
    each = functional.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    return each.view(len(target), -1).mean(-1)


def loss_name(loss: Any) -> str:
    """A name for a loss, by which a resumed run knows it: as far as it can be named."""
    return function_identity(cross_entropy if loss is functional.cross_entropy else loss)


def objective(
    model: FlatModel, loss: Loss | None, weight_decay: float, clip: float | None, precision: str | None = None
) -> Objective:
    """What a run minimises: the user's loss, or cross-entropy. Only for cross-entropy the loss of each sample is known."""
    if loss is not None:
        return Objective(model, loss, weight_decay, clip, precision=precision)
    return Objective(model, cross_entropy, weight_decay, clip, cross_entropies, precision)
