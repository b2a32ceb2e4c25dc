"""Small convolutional networks with 3 x 3 filters. Every convolution is followed by 2 x 2 pooling."""

from __future__ import annotations

from torch import nn

from fedkeel.models import ImageShape
from fedkeel.models.max_pool import MaxPool


def cnn(shape: ImageShape, classes: int) -> nn.Module:
    """Two convolutions and a linear layer: a small model for quick runs, not from a paper. 20,490 parameters on MNIST."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), MaxPool(), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), MaxPool(), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * (height // 4) * (width // 4), classes),
    )


def cnn3(shape: ImageShape, classes: int) -> nn.Module:
    """Three convolutions and two dense layers (PAdaMFed, EMNIST). 135,663 parameters for the 47 classes of EMNIST balanced.

    Differs from the paper: it says "three convolutional layers and two fully connected layers" and nothing else. We chose
    the widths 32, 64, 64 and 128, the pooling and ReLU.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), MaxPool(), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), MaxPool(), nn.ReLU()),
        nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), MaxPool(), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(64 * (height // 8) * (width // 8), 128), nn.ReLU()),
        nn.Linear(128, classes),
    )
