"""Loss and accuracy of a model on data, usually test data; and what the history says of the model after a round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.device import to_device
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import numbers
from fedkeel.core.steps import Objective
from fedkeel.data.dataset_pool import CHUNK as POOL_CHUNK
from fedkeel.data.dataset_pool import DatasetPool
from fedkeel.data.federation import Federation, Prepare
from fedkeel.engine import seeding

if TYPE_CHECKING:
    from fedkeel.core.round import Round
    from fedkeel.engine.client_work import ClientWork
    from fedkeel.engine.held_out import HeldOut
    from fedkeel.engine.own_metrics import OwnMetrics
    from fedkeel.engine.runners.runner import Remote
    from fedkeel.engine.settings import Settings
    from fedkeel.engine.state.checkpoint import RunState

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
        with seeding.GENERATORS, torch.random.fork_rng(devices=[]):
            seeding.seed_torch(EVALUATION_SEED, next(module.parameters()).device)
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
        with seeding.GENERATORS, torch.random.fork_rng(devices=[]):
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


# After a round --------------------------------------------------------------------------------------------------------


@dataclass
class RoundEvaluation:
    """How good the model is after a round: columns of the history."""

    work: ClientWork
    settings: Settings
    store: Any  # client memory
    whole: Federation  # with the samples that are held out
    held: HeldOut | None  # the validation data
    own: OwnMetrics  # of the user
    remote: Remote | None  # clients on other machines

    def test_scores(self, state: RunState, ids: Sequence[int]) -> dict[str, Any]:
        """On the test data. ids: the clients of the round."""
        test, model = self.work.fed.test, self.work.objective.model
        if test is None or not self.settings.evaluates(state.t):
            return {"test_accuracy": None, "test_loss": None}
        row = self._tested(test, state, state.buffers, self.own.outputs)
        if model.private:  # each client has its own layers: also the mean accuracy over those that took part
            layers = [to_device(self.store.read(i).values, model.device) for i in ids if i in self.store]
            rows = [self._tested(test, state, values) for values in layers]
            if rows:  # clients on other machines do not send their layers
                row["client_accuracy"] = sum(z["test_accuracy"] or 0.0 for z in rows) / len(rows)
        return row

    def _tested(
        self, test: tuple[Any, Any], state: RunState, buffers: Tensor, metrics: Sequence[OutputMetric] = ()
    ) -> dict[str, Any]:
        batches = batches_of(self.work.objective.model, test, self.work.fed.prepare)
        found = evaluate(self.work.objective, state.server.x, buffers, batches, metrics)
        return {f"test_{name}": value for name, value in found.items()}

    def measured(self, old: Any, state: RunState, uploads: Any, r: Round) -> dict[str, float]:
        """The measurements that `metrics` names. old: the server record before the round."""
        from fedkeel.engine.metrics import MetricInputs, measure

        sizes, N = self.work.fed.sizes.astype(float), len(self.work.fed)
        weights = sizes / sizes.sum() if self.settings.weights == "samples" else np.full(N, 1 / N)
        inputs = MetricInputs(self.work, old.x, old, state.server, uploads, r, self.store, state.buffers, weights)
        return measure(self.settings.metrics, inputs)

    def other_scores(self, state: RunState, row: dict[str, Any], lr_factor: float) -> dict[str, Any]:
        """On the validation data, and what the user's functions measure. row: the columns so far."""
        found: dict[str, Any] = {}
        if self.held is not None:
            from fedkeel.engine.client_scores import validation_scores

            found = validation_scores(self, self.held, state, lr_factor)
        if self.own.functions and self.settings.evaluates(state.t):
            model = self.work.objective.model
            model.bind(state.server.x)
            if model.has_buffers:
                model.write_buffers(state.buffers)
            found |= self.own.of_model(model, self.whole, row | found)
        return found
