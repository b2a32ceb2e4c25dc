"""Checks, before any training, that model, data and loss fit together."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.flat import FlatModel
from fedkeel.core.steps import Loss, check_one_number
from fedkeel.data.federation import Federation
from fedkeel.engine.evaluation import evaluating
from fedkeel.engine.inputs import model_input


def check_fit(model: FlatModel, fed: Federation, data: tuple[Tensor, Tensor], loss: Loss | None, where: str = "") -> None:
    """Raises if the model does not take the data, or has no output for some label. With a loss of the user's: raises if the
    loss does not take output and target."""
    labels = data[1]
    x, y = model_input(model, data[0][:2], fed.prepare), labels[:2].to(model.device)
    try:
        with torch.enable_grad(), evaluating(model.module):  # in training mode, BatchNorm may refuse so few samples
            output = model.module(x)
    except Exception as error:
        raise ValueError(f"{where}model: it does not take samples of shape {list(x.shape[1:])}: {error}") from error
    if loss is not None:
        return _check_loss(loss, output, model_input(model, y), where)
    if labels.is_floating_point():
        raise ValueError(
            f"{where}loss: the targets are not class numbers; pass loss=, for example torch.nn.functional.mse_loss"
        )
    low, high = int(labels.min()), int(labels.max())
    if not isinstance(output, Tensor) or output.dim() < 2 or low < 0 or high >= output.shape[-1]:
        width = output.shape[-1] if isinstance(output, Tensor) and output.dim() > 1 else "no"
        raise ValueError(
            f"{where}labels: they go from {low} to {high}, but the model has {width} outputs (labels start at 0)"
        )
    if y.shape != output.shape[:-1]:
        raise ValueError(
            f"{where}labels: their shape {list(y.shape[1:])} per sample does not fit the output {list(output.shape[1:])}"
        )


def _check_loss(loss: Loss, output: Any, target: Tensor, where: str) -> None:
    """Raises if the loss does not return one number that depends on the output. An exception inside of it is ignored: it may
    need more than the two samples of this check."""
    try:
        inspect.signature(loss).bind(output, target)
    except TypeError as error:
        raise ValueError(f"{where}loss: it must take two arguments, output and target: {error}") from None
    except ValueError:  # Python does not know the arguments of some functions written in C
        pass
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            value = loss(output, target)
    except Exception:
        return
    if not isinstance(value, Tensor):
        raise ValueError(f"{where}loss: it returns a {type(value).__name__}; it must be a tensor, the mean over the batch")
    check_one_number(value)
    if not value.requires_grad:
        raise ValueError(f"{where}loss: it does not depend on the trained parameters; is it detached somewhere?")
