"""Data as a model takes it."""

from __future__ import annotations

from torch import Tensor

from fedkeel.core.flat import FlatModel
from fedkeel.data.federation import Prepare


def model_input(model: FlatModel, z: Tensor, prepare: Prepare | None = None) -> Tensor:
    """z prepared, on the model's device, and in its dtype where it consists of floating-point numbers."""
    z = z.to(model.device)
    z = z if prepare is None else prepare(z)
    return z.to(model.dtype) if z.is_floating_point() else z
