"""Networks of two 5 x 5 convolutions, each followed by 2 x 2 pooling, and dense layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkeel.models import ImageShape
from fedkeel.models.max_pool import MaxPool


class SMU(nn.Module):
    """The smooth maximum unit (x + x erf(mu x)) / 2 of the FedLADA paper's Table 8. It approaches ReLU as mu grows.

    Differs from the paper: it "selects a proper mu" and does not say which. We chose mu = 4. GeLU is mu = 0.7071.
    """

    def __init__(self, mu: float = 4.0) -> None:
        super().__init__()
        self.mu = mu

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(self.mu * x))


def gelu() -> nn.Module:
    """GeLU in the tanh form that the FedLADA paper prints."""
    return nn.GELU(approximate="tanh")


def lenet5(shape: ImageShape, classes: int) -> nn.Module:
    """LeNet-5 (GradMA, CIFAR-10): 6 and 16 channels, dense layers of 120 and 84.

    62,006 parameters on CIFAR-10, 61,706 on MNIST. Images of MNIST are padded to 32 x 32, the size that the network expects.

    Differs from the paper: LeCun et al. 1998 use sigmoids, trained pooling and a sparse second convolution. Today ReLU, max
    pooling and a full second convolution are usual. GradMA's code calls a wider network LeNet-5: 32 and 64 channels, dense
    layers of 512 and 128, with batch normalisation and dropout.
    """
    padding = 2 if min(shape[1:]) < 32 else 0
    return _lenet(shape, classes, channels=(6, 16), dense=(120, 84), padding=padding)


def lenet(shape: ImageShape, classes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """The LeNet of FedLADA (CIFAR-10): 64 and 64 channels, dense layers of 384 and 192. 797,962 parameters on CIFAR-10.

    The paper says "two convolutional layers and two fully connected layers", and compares ReLU, GeLU and SMU. The widths
    come from its authors' code, which adds a linear output layer.
    """
    return _lenet(shape, classes, channels=(64, 64), dense=(384, 192), activation=activation)


def lenet_gelu(shape: ImageShape, classes: int) -> nn.Module:
    """`lenet` with GeLU in the place of ReLU."""
    return lenet(shape, classes, activation=gelu)


def lenet_smu(shape: ImageShape, classes: int) -> nn.Module:
    """`lenet` with SMU in the place of ReLU."""
    return lenet(shape, classes, activation=SMU)


def cnn_lamb(shape: ImageShape, classes: int) -> nn.Module:
    """The CNN of Fed-LAMB (MNIST, Fashion-MNIST): two convolutions, dropout, two dense layers. 21,840 parameters on MNIST.

    UNCONFIRMED: the paper gives no widths. The 10 and 20 channels, the 50 units and the places of dropout are those of the
    public MNIST example that many federated code bases start from.
    """
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 10, 5), MaxPool(), nn.ReLU()),
        nn.Sequential(nn.Conv2d(10, 20, 5), nn.Dropout2d(), MaxPool(), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(_flat(shape, 20), 50), nn.ReLU(), nn.Dropout()),
        nn.Linear(50, classes),
    )


def _lenet(
    shape: ImageShape,
    classes: int,
    channels: tuple[int, int],
    dense: tuple[int, int],
    padding: int = 0,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    first, second = channels

    def pooled() -> list[nn.Module]:
        """Activation and pooling. ReLU may come last: it never decreases, so the result is the same."""
        return [MaxPool(), activation()] if activation is nn.ReLU else [activation(), MaxPool()]

    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], first, 5, padding=padding), *pooled()),
        nn.Sequential(nn.Conv2d(first, second, 5), *pooled(), nn.Flatten()),
        nn.Sequential(nn.Linear(_flat(shape, second, padding), dense[0]), activation()),
        nn.Sequential(nn.Linear(dense[0], dense[1]), activation()),
        nn.Linear(dense[1], classes),
    )


def _flat(shape: ImageShape, channels: int, padding: int = 0) -> int:
    """The size of the output of the two convolutions."""
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in shape[1:])
    return channels * height * width
