"""Metrics that are Python objects: functions of (model, fed), and objects of torchmetrics."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedkeel.core.flat import FlatModel
from fedkeel.data.federation import Federation
from fedkeel.engine.callbacks import callback_name, new_columns
from fedkeel.engine.evaluation import evaluating
from fedkeel.errors import refuse

ModelMetric = Callable[[nn.Module, Federation], Mapping[str, float]]


class TorchMetric:
    """An object of torchmetrics, which sees outputs and targets of test and validation data.

    Its column is called like its class: MeanSquaredError is mean_squared_error, after test_ or val_.
    """

    def __init__(self, metric: Any, device: torch.device) -> None:
        self.metric = copy.deepcopy(metric).to(device)  # the user's object stays as it is
        self.metric.reset()
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()

    def update(self, output: Any, target: Any) -> None:
        self.metric.update(output, target)

    def result(self) -> dict[str, float]:
        value = self.metric.compute()
        self.metric.reset()
        values = value if isinstance(value, Mapping) else {self.name: value}  # a MetricCollection has several
        return new_columns({name: _mean(z) for name, z in values.items()}, {}, f"metrics: {self.name}")


def _mean(value: Any) -> Any:
    """A metric may have a number per class or output. A row of the history holds their mean."""
    return value.double().mean() if isinstance(value, torch.Tensor) and value.numel() > 1 else value


@dataclass(frozen=True)
class OwnMetrics:
    """The metrics of a run that are Python objects."""

    outputs: Sequence[TorchMetric] = ()
    functions: Sequence[ModelMetric] = ()

    def of_model(self, model: FlatModel, fed: Federation, row: dict[str, Any]) -> dict[str, float]:
        """What the functions return for the model at its present point."""
        found: dict[str, float] = {}
        with evaluating(model.module):
            for function in self.functions:
                returned = function(model.module, fed)
                found |= new_columns(returned, row | found, f"metrics: {callback_name(function)}")
        return found


def separate(metrics: Any) -> tuple[Any, list[Any]]:
    """(names, objects). What is neither a list nor a tuple stays as it is, for the check of the names."""
    if not isinstance(metrics, list | tuple):
        return metrics, []
    objects = [one for one in metrics if callable(one)]
    return [one for one in metrics if not callable(one)], objects


def own_metrics(objects: Sequence[Any], device: torch.device) -> OwnMetrics:
    """objects: functions of (model, fed), and objects of torchmetrics."""
    for one in objects:
        if isinstance(one, type):
            raise refuse("metrics", one, f"an object; write {one.__name__}()")
    torchmetrics = [hasattr(one, "update") and hasattr(one, "compute") for one in objects]
    pairs = list(zip(objects, torchmetrics, strict=True))
    return OwnMetrics(
        [TorchMetric(one, device) for one, from_torch in pairs if from_torch],
        [one for one, from_torch in pairs if not from_torch],
    )
