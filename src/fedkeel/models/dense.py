"""Logistic regression and multi-layer perceptrons, for inputs of any shape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def logistic(inputs: int, classes: int) -> nn.Module:
    """One linear layer: multinomial logistic regression, a convex problem. 7,850 parameters on MNIST."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int, classes: int, hidden: Sequence[int] = (200,), norm: bool = False) -> nn.Module:
    """Linear layers with ReLU between them; one hidden layer of 200 (Fed-LAMB). 159,010 parameters on MNIST.

    hidden: the widths of the hidden layers.  norm: puts batch normalisation before every ReLU.
    """
    widths = [inputs, *hidden]
    blocks: list[list[nn.Module]] = [
        [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()] for a, b in zip(widths, hidden, strict=False)
    ]
    blocks[0].insert(0, nn.Flatten())
    return nn.Sequential(*(nn.Sequential(*block) for block in blocks), nn.Linear(widths[-1], classes))


def mlp2(inputs: int, classes: int) -> nn.Module:
    """Two hidden layers of 200, the "2NN" of FedAvg. 199,210 parameters on MNIST."""
    return mlp(inputs, classes, hidden=(200, 200))


def mlp3(inputs: int, classes: int) -> nn.Module:
    """Three hidden layers of 200 (GradMA). 239,410 parameters on MNIST.

    Differs from the paper: GradMA says "three linear hidden layers" and gives no widths. Its authors' code is `mlp_bn`.
    """
    return mlp(inputs, classes, hidden=(200, 200, 200))


def mlp_bn(inputs: int, classes: int) -> nn.Module:
    """The network of the GradMA authors' code: 784-200-100-10 with batch normalisation. 178,710 parameters on MNIST."""
    return mlp(inputs, classes, hidden=(200, 100), norm=True)
