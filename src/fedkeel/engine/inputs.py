"""Converts data to the form that a model takes."""

from __future__ import annotations

from torch import Tensor

from fedkeel.core.flat import FlatModel
from fedkeel.data.federation import Prepare
from fedkeel.engine.device import to_device


def model_input(model: FlatModel, z: Tensor, prepare: Prepare | None = None) -> Tensor:
    """z on the model's device, after `prepare`. Floating-point numbers get the model's dtype, whole numbers keep theirs."""
    z = to_device(z, model.device)
    z = z if prepare is None else prepare(z)
    return z.to(model.dtype) if z.is_floating_point() else z
