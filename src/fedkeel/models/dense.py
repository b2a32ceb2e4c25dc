"""Logistic regression and multi-layer perceptrons, for inputs of any shape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def logistic(inputs: int, classes: int) -> nn.Module:
    """One linear layer: multinomial logistic regression, convex. 7,850 parameters on MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int, classes: int, hidden: Sequence[int] = (200,), norm: bool = False) -> nn.Module:
    """Linear layers of the given widths with ReLU between them, and batch normalisation before it if asked for.

    Parameters on MNIST: 159,010 with one hidden layer of 200 (Fed-LAMB), 199,210 with two (the "2NN" of FedAvg), 239,410
    with three (GradMA).

    Differs from the paper: GradMA says "three linear hidden layers" and no widths; its authors' code has three linear layers
    in all, 784-200-100-10, with batch normalisation, which is "mlp-bn" here: 178,710 parameters.
    """
    widths = [inputs, *hidden]
    blocks: list[list[nn.Module]] = [
        [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()] for a, b in zip(widths, hidden, strict=False)
    ]
    blocks[0].insert(0, nn.Flatten())
    return nn.Sequential(*(nn.Sequential(*block) for block in blocks), nn.Linear(widths[-1], classes))
