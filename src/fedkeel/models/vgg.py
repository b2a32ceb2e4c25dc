"""VGG-11."""

from __future__ import annotations

from torch import nn

from fedkeel.models import ImageShape

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # configuration A of Simonyan and Zisserman 2014


def vgg11(shape: ImageShape, classes: int) -> nn.Module:
    """Eight 3 x 3 convolutions in five stages, with batch normalisation, and a linear layer (GradMA, CIFAR-100).

    9,231,114 parameters for 10 classes, 9,277,284 for CIFAR-100. The convolutions are the original ones, with 9,220,480
    parameters. The original dense layers expect 7 x 7 maps of large images; one linear layer replaces them, as is usual for
    small images.

    Differs from the paper: GradMA only names VGG-11. Its code has a hidden layer of 128 with dropout before the last layer.
    """
    channels, stages = shape[0], []
    for widths in STAGES:
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        # Rounds up, so that images of 28 x 28 can be halved five times. The last ReLU comes after the pooling.
        stages.append(nn.Sequential(*layers[:-1], nn.MaxPool2d(2, ceil_mode=True), layers[-1]))
    stages[-1].extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    return nn.Sequential(*stages, nn.Linear(channels, classes))
