"""The round with the best score on the validation data, and the model that it ended with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedkeel.core.flat import Layers


@dataclass(frozen=True)
class BestRound:
    round: int
    accuracy: float | None  # on the validation data; None if the targets are not classes
    loss: float
    x: Tensor  # [d] global model
    buffers: Tensor  # [b] the model's buffers

    def is_worse_than(self, found: Mapping[str, Any]) -> bool:
        """Are these scores better? Accuracy decides, or the loss if there is none. The earlier of equal rounds stays."""
        if self.accuracy is not None and found["accuracy"] is not None:
            return bool(found["accuracy"] > self.accuracy)
        return bool(found["loss"] < self.loss or self.loss != self.loss)  # a loss may have become NaN

    def scores(self) -> dict[str, Any]:
        return {"round": self.round, "accuracy": self.accuracy, "loss": self.loss}

    def tensors(self) -> dict[str, Tensor]:
        return {"best.x": self.x, "best.buffers": self.buffers}

    @classmethod
    def restored(cls, scores: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        return cls(**scores, x=tensors["best.x"].to(device), buffers=tensors["best.buffers"].to(device))

    def in_order(self, layers: Layers) -> BestRound:
        """With the weights in the order of model.parameters()."""
        return dataclasses.replace(self, x=layers.in_order(self.x))
