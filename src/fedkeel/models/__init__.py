"""Models by name, sized to the data that they are to be trained on.

Each is an nn.Sequential of the blocks that methods like MOON and FedMLB need to see (core/features.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fedkeel.errors import nearest
from fedkeel.models.cnn import cnn, cnn3
from fedkeel.models.dense import logistic, mlp
from fedkeel.models.factory import from_factory
from fedkeel.models.lenet import SMU, cnn_lamb, gelu, lenet, lenet5
from fedkeel.models.lstm import char_lstm, lstm
from fedkeel.models.resnet import resnet18, resnet18_7x7, resnet20
from fedkeel.models.vgg import vgg11

Shape = tuple[int, ...]
Make = Callable[[Any, int], nn.Module]

# make(number of inputs, classes)
DENSE: dict[str, Make] = {
    "logistic": logistic,
    "mlp": mlp,
    "mlp2": partial(mlp, hidden=(200, 200)),
    "mlp3": partial(mlp, hidden=(200, 200, 200)),
    "mlp-bn": partial(mlp, hidden=(200, 100), norm=True),
}
# make((C, H, W), classes), and the smallest H and W
IMAGES: dict[str, tuple[Make, int]] = {
    "cnn": (cnn, 4),
    "cnn3": (cnn3, 8),
    "cnn-lamb": (cnn_lamb, 16),
    "lenet5": (lenet5, 12),
    "lenet": (lenet, 16),
    "lenet-gelu": (partial(lenet, activation=gelu), 16),
    "lenet-smu": (partial(lenet, activation=SMU), 16),
    "vgg11": (vgg11, 17),
    "resnet20": (resnet20, 8),
    "resnet18-gn": (resnet18, 8),
    "resnet18-bn": (partial(resnet18, norm=nn.BatchNorm2d), 9),
    "resnet18-gn-7x7": (resnet18_7x7, 8),
}
# make(vocabulary, classes)
TEXT: dict[str, Make] = {"lstm": lstm, "char-lstm": char_lstm}

MODELS = (*DENSE, *IMAGES, *TEXT)


def make_model(name: str, shape: Shape, classes: int, vocabulary: int | None = None) -> nn.Module:
    """The model `name` for samples of `shape`, that many classes and, where samples are token ids, kinds of tokens.

    name: one of MODELS, or `package.module:factory` for a model of one's own.

    >>> make_model("resnet18-gn", (3, 32, 32), 10)
    """
    shape = tuple(shape)
    if ":" in name:
        return from_factory(name, shape, classes, vocabulary)
    if name not in MODELS:
        raise ValueError(f"model: unknown name {name!r}{nearest(name, MODELS)}")
    if name in TEXT:
        if vocabulary is None or len(shape) != 1:
            raise ValueError(f"model: {name!r} needs token ids [L] and their vocabulary, {_told(shape, vocabulary)}")
        return TEXT[name](vocabulary, classes)
    if vocabulary is not None:
        raise ValueError(f"model: {name!r} does not read text, {_told(shape, vocabulary)}; use {' or '.join(TEXT)}")
    if name in DENSE:
        return DENSE[name](math.prod(shape), classes)
    make, least = IMAGES[name]
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"model: {name!r} needs images [C, H, W] of at least {least} x {least} pixels, {_told(shape, vocabulary)}"
        )
    return make(shape, classes)


def _told(shape: Shape, vocabulary: int | None) -> str:
    return f"the data have shape {list(shape)}" + ("" if vocabulary is None else f" and a vocabulary of {vocabulary}")
