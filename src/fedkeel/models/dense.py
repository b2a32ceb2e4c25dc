"""Logistic regression and multi-layer perceptrons, for inputs of any shape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def logistic(inputs: int, classes: int) -> nn.Module:
    """One linear layer: multinomial logistic regression, convex."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int, classes: int, hidden: Sequence[int] = (200,)) -> nn.Module:
    """Linear layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
