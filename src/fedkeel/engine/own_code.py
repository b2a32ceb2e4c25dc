"""Functions and objects of the user that a run calls, and checks of them before any work."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.flat import FlatModel
from fedkeel.core.steps import Loss, Step, check_one_number
from fedkeel.engine.callbacks import Callback
from fedkeel.engine.evaluation import evaluating, unchanged
from fedkeel.engine.seeding import GENERATORS
from fedkeel.errors import describe, refuse


@dataclass(frozen=True)
class OwnCode:
    """What a run calls of the user's."""

    loss: Loss | None = None  # None: cross-entropy
    step: Step | None = None
    metrics: Sequence[Any] = ()  # functions of (model, fed), and objects of torchmetrics
    callbacks: Sequence[Callback] = ()


NO_CODE = OwnCode()


def check_functions(loss: object, step: object) -> None:
    """Raises if loss or step is no function, or if both are given."""
    if loss is not None and not callable(loss):
        raise refuse("loss", loss, "a function loss(output, target), or None for cross-entropy")
    if step is not None and not callable(step):
        raise refuse("step", step, "a function step(model, batch) that returns the loss, or None")
    if step is not None and loss is not None:
        raise ValueError("step is not allowed beside loss; a step computes the loss itself")


def check_step(step: Step, model: FlatModel, batch: Any, where: str) -> None:
    """Raises if the user's step fails on two samples, or does not return one number that depends on the parameters."""
    try:
        with torch.enable_grad(), evaluating(model.module), unchanged(model.module):
            value = step(model.module, batch)
    except Exception as error:
        raise ValueError(f"{where}step: it fails on a batch of two samples: {describe(error)}") from error
    _check_value(value, f"{where}step")


def check_loss(loss: Loss, output: Any, target: Tensor, where: str) -> None:
    """Raises if the loss does not return one number that depends on the output. An exception inside of it is ignored: it may
    need more than the two samples of this check."""
    try:
        inspect.signature(loss).bind(output, target)
    except TypeError as error:
        raise ValueError(f"{where}loss: it must take two arguments, output and target: {error}") from None
    except ValueError:  # Python does not know the arguments of some functions written in C
        pass
    try:
        with torch.enable_grad(), GENERATORS, torch.random.fork_rng(devices=[]):
            value = loss(output, target)
    except Exception:
        return
    _check_value(value, f"{where}loss")


def _check_value(value: Any, what: str) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{what}: it returns a {type(value).__name__}; it must be a tensor, the mean over the batch")
    check_one_number(value)
    if not value.requires_grad:
        raise ValueError(f"{what}: it does not depend on the trained parameters; is it detached somewhere?")
