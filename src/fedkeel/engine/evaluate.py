"""The loss that is trained by default, and what a model is worth on test data."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.core.flat import FlatModel
from fedkeel.core.steps import Loss, Objective, check_one_number
from fedkeel.data.federation import Federation, Prepare

CHUNK = 2048  # samples at a time, or
NUMBERS = 1_000_000  # as many as have so many numbers together: what a network makes of them may be a thousand times as much


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over the last dimension of the output; sequences count position by position."""
    if output.dim() > 2:
        output, target = output.flatten(0, -2), target.flatten()
    return functional.cross_entropy(output, target.long())


def cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of every sample, [B, ..., classes] -> [B]."""
    if output.dim() == 2:
        return functional.cross_entropy(output, target, reduction="none")
    each = functional.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none")
    return each.view(len(target), -1).mean(-1)


def objective(model: FlatModel, loss: Loss | None, weight_decay: float, clip: float | None) -> Objective:
    """What is minimised: the user's loss, or cross-entropy, of which the loss of every sample is known, too."""
    if loss is not None:
        return Objective(model, loss, weight_decay, clip)
    return Objective(model, cross_entropy, weight_decay, clip, cross_entropies)


def model_input(model: FlatModel, z: Tensor, prepare: Prepare | None = None) -> Tensor:
    """z prepared, on the model's device, and in its dtype where it consists of floating-point numbers."""
    z = z.to(model.device)
    z = z if prepare is None else prepare(z)
    return z.to(model.dtype) if z.is_floating_point() else z


def evaluate(
    model: FlatModel,
    x: Tensor,
    buffers: Tensor,
    loss: Loss,
    data: tuple[Tensor, Tensor],
    prepare: Prepare | None = None,
) -> dict[str, Any]:
    """Mean loss, and accuracy where targets are classes, of the parameters x on the data."""
    inputs, targets = data
    model.bind(x)
    if model.has_buffers:
        model.write_buffers(buffers)
    chunks = zip(inputs.split(at_a_time(inputs)), targets.split(at_a_time(inputs)), strict=True)
    batches = ((model_input(model, a, prepare), model_input(model, b)) for a, b in chunks)
    with evaluating(model.module):
        mean, accuracy = scores(model.module, loss, batches)
    return {"test_accuracy": accuracy, "test_loss": mean}


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards every layer is in the mode that it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def at_a_time(x: Tensor) -> int:
    """How many samples like x[0] an evaluation takes at a time."""
    return max(1, min(CHUNK, NUMBERS // max(1, x[0].numel())))


def scores(module: nn.Module, loss: Loss, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Mean loss, and accuracy where targets are classes."""
    total, samples, right, count = 0.0, 0, 0, 0
    for x, y in batches:
        output = module(x)
        total += float(loss(output, y)) * len(y)
        samples += len(y)
        if classes(output, y):
            right += int((output.argmax(-1) == y).sum())
            count += y.numel()
    return total / samples, right / count if count else None


def classes(output: Any, target: Tensor) -> bool:
    """Are these scores of several classes, and their numbers?"""
    if not isinstance(output, Tensor) or target.is_floating_point():
        return False
    return output.shape[:-1] == target.shape and output.shape[-1] > 1


def check_fit(model: FlatModel, fed: Federation, data: tuple[Tensor, Tensor], loss: Loss | None, where: str = "") -> None:
    """Does the model take the data, and does it have an output for every label, or does the user's loss take both?"""
    labels = data[1]
    x, y = model_input(model, data[0][:2], fed.prepare), labels[:2].to(model.device)
    try:
        with torch.enable_grad(), evaluating(model.module):  # in training, one sample may be too few to be normalised
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
    """Does it return one number that depends on the output? If it fails on two samples, it may need more of them."""
    try:
        inspect.signature(loss).bind(output, target)
    except TypeError as error:
        raise ValueError(f"{where}loss: it must take two arguments, output and target: {error}") from None
    except ValueError:  # functions written in C need not tell their arguments
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
