"""Models by name, sized to the data that they are to be trained on."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from fedkeel.core.algorithm import nearest
from fedkeel.models.cnn import cnn
from fedkeel.models.dense import logistic, mlp

Shape = tuple[int, ...]

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "logistic": lambda shape, classes: logistic(math.prod(shape), classes),
    "mlp": lambda shape, classes: mlp(math.prod(shape), classes, (200,)),
    "mlp2": lambda shape, classes: mlp(math.prod(shape), classes, (200, 200)),
    "mlp3": lambda shape, classes: mlp(math.prod(shape), classes, (200, 200, 200)),
    "cnn": lambda shape, classes: cnn(_image(shape), classes),
}


def make_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """The model `name` for samples of `shape` and that many classes."""
    if name not in MODELS:
        raise ValueError(f"model: unknown name {name!r}{nearest(name, MODELS)}")
    return MODELS[name](tuple(shape), classes)


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(f"model: 'cnn' needs images [C, H, W] of at least 4 x 4 pixels, the data have shape {list(shape)}")
    return shape[0], shape[1], shape[2]
