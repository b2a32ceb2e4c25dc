"""Models by name, sized to the data that you train them on.

Each model is an nn.Sequential of blocks. Methods such as MOON and FedMLB look at what goes from block to block
(core/features.py).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from fedkeel.data.dataset_pool import DatasetPool, kind_of
from fedkeel.data.federation import Federation
from fedkeel.errors import nearest

Shape = tuple[int, ...]  # of one sample
ImageShape = tuple[int, int, int]  # (C, H, W)

# The tables hold "module:function". A module is imported when you first ask for one of its models.
# function(number of inputs, number of classes)
DENSE = {
    "logistic": "dense:logistic",
    "mlp": "dense:mlp",
    "mlp2": "dense:mlp2",
    "mlp3": "dense:mlp3",
    "mlp-bn": "dense:mlp_bn",
}
# function((C, H, W), number of classes), and the smallest H and W that the model takes
IMAGES = {
    "cnn": ("cnn:cnn", 4),
    "cnn3": ("cnn:cnn3", 8),
    "cnn-lamb": ("lenet:cnn_lamb", 16),
    "lenet5": ("lenet:lenet5", 12),
    "lenet": ("lenet:lenet", 16),
    "lenet-gelu": ("lenet:lenet_gelu", 16),
    "lenet-smu": ("lenet:lenet_smu", 16),
    "vgg11": ("vgg:vgg11", 17),
    "resnet20": ("resnet:resnet20", 8),
    "resnet18-gn": ("resnet:resnet18", 8),
    "resnet18-bn": ("resnet:resnet18_bn", 9),
    "resnet18-gn-7x7": ("resnet:resnet18_7x7", 8),
}
# function(size of the vocabulary, number of classes)
TEXT = {"lstm": "lstm:lstm", "char-lstm": "lstm:char_lstm"}

MODELS = (*DENSE, *IMAGES, *TEXT)


def make_model(name: str, shape: Shape, classes: int, vocabulary: int | None = None) -> nn.Module:
    """The model `name` for samples of the given shape.

    name: one of MODELS, or `package.module:factory` for a model that you wrote.
    classes: the number of classes.
    vocabulary: the number of different tokens, if the samples are token ids.

    >>> make_model("resnet18-gn", (3, 32, 32), 10)
    """
    shape = tuple(shape)
    if ":" in name:
        from fedkeel.models.user_model import make_user_model

        return make_user_model(name, shape, classes, vocabulary)
    if name not in MODELS:
        raise ValueError(f"model: unknown name {name!r}{nearest(name, MODELS)}")
    if name in TEXT:
        if vocabulary is None or len(shape) != 1:
            raise ValueError(f"model: {name!r} needs token ids [L] and their vocabulary, {_data(shape, vocabulary)}")
        return model_function(name)(vocabulary, classes)
    if vocabulary is not None:
        raise ValueError(f"model: {name!r} does not read text, {_data(shape, vocabulary)}; use {' or '.join(TEXT)}")
    if name in DENSE:
        return model_function(name)(math.prod(shape), classes)
    least = IMAGES[name][1]
    if len(shape) != 3 or min(shape[1:]) < least:
        needed = f"images [C, H, W] of at least {least} x {least} pixels"
        raise ValueError(f"model: {name!r} needs {needed}, {_data(shape, vocabulary)}")
    return model_function(name)(shape, classes)


def model_function(name: str) -> Callable[..., nn.Module]:
    """The function that makes the model `name`."""
    place = IMAGES[name][0] if name in IMAGES else (DENSE | TEXT)[name]
    module, _, function = place.partition(":")
    make: Callable[..., nn.Module] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return make


def _data(shape: Shape, vocabulary: int | None) -> str:
    """The end of an error message: what the data are instead."""
    return f"the data have shape {list(shape)}" + ("" if vocabulary is None else f" and a vocabulary of {vocabulary}")


# Sized to the data ------------------------------------------------------------------------------------------------------


def model_for(fed: Federation, name: str, classes: int | None = None) -> Callable[[], nn.Module]:
    """A function that makes the model `name`, sized to the data. classes: number of outputs (default: as the data say)."""
    shape, outputs, vocabulary = shape_of(fed), classes or outputs_of(fed), fed.vocabulary
    return lambda: make_model(name, shape, outputs, vocabulary)


def shape_of(fed: Federation) -> tuple[int, ...]:
    if not isinstance(fed.x, DatasetPool):
        return fed.shape
    x, _ = fed.x.batch(np.array([0]))
    if not isinstance(x, Tensor):
        raise ValueError(f"model: a batch of these data sets has a {kind_of(x)} as inputs; make the model yourself")
    return tuple(x.shape[1:])


def outputs_of(fed: Federation) -> int:
    """Classes, or numbers that are predicted."""
    if fed.classes is not None:
        return fed.classes
    if fed.y is None:
        raise ValueError("classes: data sets do not say how many there are; pass classes=")
    if fed.y.is_floating_point():
        return int(fed.y[0].numel())
    return int(fed.y.max()) + 1
