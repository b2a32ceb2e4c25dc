"""VGG-11; shape is (C, H, W)."""

from __future__ import annotations

from torch import nn

Image = tuple[int, int, int]
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # configuration A of Simonyan and Zisserman 2014


def vgg11(shape: Image, classes: int) -> nn.Module:
    """Eight 3 x 3 convolutions in five stages, with batch normalisation, and a linear layer (GradMA, CIFAR-100).

    9,231,114 parameters for 10 classes, 9,277,284 for CIFAR-100; 9,220,480 of them are those of the convolutions of the
    original. Its dense layers are for 7 x 7 maps of 1000-class images, and are replaced by one linear layer, as is usual for
    small images.

    Differs from the paper: GradMA names VGG-11 only; its code has a hidden layer of 128 with dropout before the last.
    """
    channels, stages = shape[0], []
    for widths in STAGES:
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        # Rounding up takes images of 28 x 28, too, through five halvings.
        stages.append(nn.Sequential(*layers, nn.MaxPool2d(2, ceil_mode=True)))
    stages[-1].extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    return nn.Sequential(*stages, nn.Linear(channels, classes))
