"""Converts data to the form that a model takes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.core.flat import FlatModel
from fedkeel.data.federation import Prepare


def model_input(model: FlatModel, z: Tensor, prepare: Prepare | None = None) -> Tensor:
    """z on the model's device and in its memory format, after `prepare`. Floating-point numbers get the model's dtype, whole
    numbers keep theirs."""
    z = z.to(model.device)
    z = z if prepare is None else prepare(z)
    z = z.to(model.dtype) if z.is_floating_point() else z
    channels_last = model.layers.channels_last and z.dim() == 4
    return z.contiguous(memory_format=torch.channels_last) if channels_last else z
