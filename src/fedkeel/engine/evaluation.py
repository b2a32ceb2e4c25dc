"""Loss and accuracy of a model on data, usually test data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.device import GENERATORS, seed_generators
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import numbers
from fedkeel.core.steps import Objective
from fedkeel.data.dataset_pool import CHUNK as POOL_CHUNK
from fedkeel.data.dataset_pool import DatasetPool
from fedkeel.data.federation import Prepare

EVALUATION_SEED = 0
CHUNK = 2048  # the most samples at a time
NUMBERS = 1_000_000  # the most input numbers at a time: a network's activations may be a thousand times as many


class OutputMetric(Protocol):
    """A measurement of outputs and targets, such as an object of torchmetrics."""

    def update(self, output: Any, target: Any) -> None: ...

    def result(self) -> dict[str, float]:
        """The columns of the history. The next `update` begins a new measurement."""


def evaluate(
    objective: Objective,
    x: Tensor,
    buffers: Tensor,
    batches: Iterable[tuple[Any, Any]],
    metrics: Sequence[OutputMetric] = (),
) -> dict[str, Any]:
    """loss: the mean loss of the parameters x on the batches; accuracy: None unless the targets are classes; and metrics."""
    model = objective.model
    model.bind(x)
    if model.has_buffers:
        model.write_buffers(buffers)
    with evaluating(model.module):
        mean, accuracy = scores(objective, batches, metrics)
    found = {"accuracy": accuracy, "loss": mean}
    for metric in metrics:
        found |= metric.result()
    return found


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
    """Puts a module into evaluation mode. Afterwards every layer has its old mode again.

    A model that draws random numbers in evaluation mode, too, draws the same ones in every evaluation.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with GENERATORS, torch.random.fork_rng(devices=[]):
            seed_generators(EVALUATION_SEED, next(module.parameters()).device)
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
        with GENERATORS, torch.random.fork_rng(devices=[]):
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


def scores(
    objective: Objective, batches: Iterable[tuple[Any, Any]], metrics: Sequence[OutputMetric] = ()
) -> tuple[float, float | None]:
    """Mean loss, and accuracy if the targets are classes. Shows every batch to the metrics."""
    losses, sizes, right, count, total = [], [], [], 0, 0.0
    for x, y in batches:
        output, target = _output(objective, x, y, needed=bool(metrics))
        if objective.step is None:
            losses.append(objective.loss(output, y))
        else:
            losses.append(objective.value(x, y).detach())
        sizes.append(samples_in(x if y is None else y))
        if target is not None and classes(output, target):
            right.append((output.argmax(-1) == target).sum())
            count += target.numel()
        for metric in metrics:
            metric.update(output, target)
    read = numbers([*losses, *right])  # waits for the device once, after the last batch
    for mean, size in zip(read, sizes, strict=False):  # `sum` of Python 3.12 would round differently
        total += mean * size
    return total / sum(sizes), sum(read[len(losses) :]) / count if count else None


def _output(objective: Objective, x: Any, y: Any, needed: bool) -> tuple[Any, Any]:
    """(output, target) of a batch. With a user's step, (None, None) if the model cannot be called on the batch itself."""
    module = objective.model.module
    if objective.step is None:
        return module(x), y
    try:
        if y is not None:
            return module(x), y
        labels = x["labels"]  # the name that the models of transformers use
        return (module(**x).logits, labels) if labels.dim() == 1 else (None, None)
    except Exception as error:
        if needed:
            raise ValueError(
                f"metrics: they need the model's output, but it cannot be called on a batch: {error}"
            ) from error
        return None, None


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length of the first tensor in it."""
    if isinstance(batch, Tensor):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return next(samples_in(part) for part in parts)


def classes(output: Any, target: Tensor) -> bool:
    """Is the output a score per class, and the target a class number?"""
    if not isinstance(output, Tensor) or target.is_floating_point():
        return False
    return output.shape[:-1] == target.shape and output.shape[-1] > 1
