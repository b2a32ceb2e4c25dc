"""What the peers built on PyTorch need: the network, and loaders that return the given batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from problem import CLASSES, HIDDEN, INPUTS, Problem, flat, split
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]

# Some peers import torchvision, whose kernels (built for CUDA) do not load beside a CPU build of torch. Nothing here uses
# them, but the import asks for these two.
VISION = torch.library.Library("torchvision", "DEF")
for kernel in ("nms", "qnms"):
    VISION.define(f"{kernel}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class Net(nn.Module):
    """encoder and head, as code for MOON needs them; parameters in the order of problem.SHAPES."""

    def __init__(self, w: np.ndarray, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh())
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.to(dtype)
        write(self, w)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def write(model: nn.Module, w: np.ndarray) -> None:
    with torch.no_grad():
        for parameter, z in zip(model.parameters(), split(w), strict=True):
            parameter.copy_(torch.as_tensor(z))


def read(model: nn.Module) -> np.ndarray:
    return flat(parameter.detach().double().numpy() for parameter in model.parameters())


def tensors(batch: tuple[np.ndarray, np.ndarray], dtype: torch.dtype = torch.float64) -> Pair:
    return torch.as_tensor(batch[0], dtype=dtype), torch.as_tensor(batch[1])


class Epochs:
    """A client's loader: each time it is iterated it gives the batches of the round's next epoch."""

    def __init__(self, p: Problem, i: int, dtype: torch.dtype = torch.float64) -> None:
        self.p, self.i, self.dtype = p, i, dtype
        self.begin(0)

    def begin(self, t: int) -> None:
        self.left = iter(self.p.epochs(t, self.i))

    def __iter__(self) -> Iterator[Pair]:
        return (tensors(batch, self.dtype) for batch in next(self.left))

    def __len__(self) -> int:
        return len(self.p.epochs(0, self.i)[0])
