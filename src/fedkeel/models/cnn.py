"""A small convolutional network for small images."""

from __future__ import annotations

from torch import nn


def cnn(shape: tuple[int, int, int], classes: int, width: int = 16) -> nn.Module:
    """Two 3 x 3 convolutions with ReLU, each followed by 2 x 2 pooling, and a linear layer; shape is (C, H, W)."""
    channels, height, side = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (side // 4), classes),
    )
