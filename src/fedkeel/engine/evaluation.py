"""Loss and accuracy of a model on data, usually test data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.flat import FlatModel
from fedkeel.core.records import numbers
from fedkeel.core.steps import Loss
from fedkeel.data.dataset_pool import CHUNK as POOL_CHUNK
from fedkeel.data.dataset_pool import DatasetPool
from fedkeel.data.federation import Prepare

CHUNK = 2048  # the most samples at a time
NUMBERS = 1_000_000  # the most input numbers at a time: a network's activations may be a thousand times as many


def evaluate(
    model: FlatModel,
    x: Tensor,
    buffers: Tensor,
    loss: Loss,
    data: tuple[Any, Any],
    prepare: Prepare | None = None,
) -> dict[str, Any]:
    """Mean loss of the parameters x on the data, and accuracy if the targets are classes."""
    model.bind(x)
    if model.has_buffers:
        model.write_buffers(buffers)
    batches = batches_of(model, data, prepare)
    with evaluating(model.module):
        mean, accuracy = scores(model.module, loss, batches)
    return {"test_accuracy": accuracy, "test_loss": mean}


def batches_of(model: FlatModel, data: tuple[Any, Any], prepare: Prepare | None = None) -> Iterator[tuple[Any, Any]]:
    """Data in batches (x, y), as the model takes them. A batch of data sets that is not a pair has y = None."""
    inputs, targets = data
    if isinstance(inputs, DatasetPool):
        for start in range(0, len(inputs), POOL_CHUNK):
            x, y = inputs.batch(np.arange(start, min(start + POOL_CHUNK, len(inputs))))
            yield model.cast_nested(x), model.cast_nested(y)
        return
    for a, b in zip(inputs.split(at_a_time(inputs)), targets.split(at_a_time(inputs)), strict=True):
        yield model.cast(a, prepare), model.cast(b)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Puts a module into evaluation mode. Afterwards every layer has its old mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """For a trial of a module: afterwards its buffers and attributes are what they were, and so is the random state."""
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    copies = [(b, b.clone()) for b in module.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        for part, attributes, buffers in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
        with torch.no_grad():
            for b, copy in copies:
                b.copy_(copy)


def at_a_time(x: Tensor) -> int:
    """How many samples like x[0] an evaluation takes at a time."""
    return max(1, min(CHUNK, NUMBERS // max(1, x[0].numel())))


def scores(module: nn.Module, loss: Loss, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float | None]:
    """Mean loss, and accuracy if the targets are classes."""
    losses, sizes, right, count, total = [], [], [], 0, 0.0
    for x, y in batches:
        output = module(x)
        losses.append(loss(output, y))
        sizes.append(len(y))
        if classes(output, y):
            right.append((output.argmax(-1) == y).sum())
            count += y.numel()
    read = numbers([*losses, *right])  # waits for the device once, after the last batch
    for mean, size in zip(read, sizes, strict=False):  # `sum` of Python 3.12 would round differently
        total += mean * size
    return total / sum(sizes), sum(read[len(losses) :]) / count if count else None


def classes(output: Any, target: Tensor) -> bool:
    """Is the output a score per class, and the target a class number?"""
    if not isinstance(output, Tensor) or target.is_floating_point():
        return False
    return output.shape[:-1] == target.shape and output.shape[-1] > 1
