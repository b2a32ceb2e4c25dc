"""Residual networks (He et al. 2016). Their blocks are the stem, the stages and the last layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from fedkeel.models import ImageShape

Norm = Callable[[int], nn.Module]  # number of channels -> normalisation layer

two_groups: Norm = partial(nn.GroupNorm, 2)


class Residual(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them. The shortcut is a 1 x 1 convolution if the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.shortcut(x)
        return out.relu()


def resnet18(shape: ImageShape, classes: int, norm: Norm = two_groups) -> nn.Module:
    """ResNet-18 for images of 32 x 32 or 64 x 64, with group normalisation. Its first convolution is 3 x 3.

    11,173,962 parameters for 10 classes, 11,220,132 for CIFAR-100, 11,271,432 for TinyImageNet. Batch normalisation has as
    many. FedLADA uses GroupNorm (2 groups in its authors' code). PAdaMFed, FAdamGT and Fed-LAMB do not say what they use.
    """
    stem = [nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), norm(64), nn.ReLU()]
    return _resnet(stem, (64, 128, 256, 512), 2, classes, norm)


def resnet18_bn(shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-18 with batch normalisation. 11,173,962 parameters for 10 classes."""
    return resnet18(shape, classes, norm=nn.BatchNorm2d)


def resnet18_7x7(shape: ImageShape, classes: int, norm: Norm = two_groups) -> nn.Module:
    """ResNet-18 for ImageNet: it starts with a 7 x 7 convolution of stride 2 and pooling. 11,181,642 for 10 classes.

    The FedLADA authors' code runs this one on images of 32 x 32 and 64 x 64. Its stages see a quarter of the height and of
    the width, so they cost a sixteenth.
    """
    stem = [nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=False), norm(64), nn.MaxPool2d(3, 2, padding=1), nn.ReLU()]
    return _resnet(stem, (64, 128, 256, 512), 2, classes, norm)


def resnet20(shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-20 with batch normalisation (GradMA, TinyImageNet). 272,474 parameters for 10 classes; TinyImageNet: 284,824.

    Differs from the paper: where the size changes, shortcuts are 1 x 1 convolutions, as in GradMA's code. He et al. pad with
    zeros there (269,722 parameters, the 0.27 M of their Table 6).
    """
    stem = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return _resnet(stem, (16, 32, 64), 3, classes, nn.BatchNorm2d)


def _resnet(stem: list[nn.Module], widths: Sequence[int], depth: int, classes: int, norm: Norm) -> nn.Module:
    """One stage of `depth` residual units per width. Every stage except the first halves the height and the width."""
    stages, channels = [], widths[0]
    for width in widths:
        first = Residual(channels, width, stride=1 if width == channels else 2, norm=norm)
        stages.append(nn.Sequential(first, *(Residual(width, width, 1, norm) for _ in range(depth - 1))))
        channels = width
    stages[-1].extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    return nn.Sequential(nn.Sequential(*stem), *stages, nn.Linear(channels, classes))
