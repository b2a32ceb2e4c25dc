"""Small convolutional networks of 3 x 3 filters; shape is (C, H, W), and every convolution is followed by 2 x 2 pooling."""

from __future__ import annotations

from torch import nn

from fedkeel.models.pool import MaxPool

Image = tuple[int, int, int]


def cnn(shape: Image, classes: int) -> nn.Module:
    """Two convolutions and a linear layer, of no paper: a small model for quick runs. 20,490 parameters on MNIST."""
    channels, height, side = shape
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), MaxPool()),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), MaxPool(), nn.Flatten()),
        nn.Linear(32 * (height // 4) * (side // 4), classes),
    )


def cnn3(shape: Image, classes: int) -> nn.Module:
    """Three convolutions and two dense layers (PAdaMFed, EMNIST). 135,663 parameters for the 47 classes of EMNIST balanced.

    Differs from the paper: it says "three convolutional layers and two fully connected layers" and no more; the widths
    32, 64, 64 and 128, the pooling and ReLU are ours.
    """
    channels, height, side = shape
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), MaxPool()),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), MaxPool()),
        nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), MaxPool(), nn.Flatten()),
        nn.Sequential(nn.Linear(64 * (height // 8) * (side // 8), 128), nn.ReLU()),
        nn.Linear(128, classes),
    )
