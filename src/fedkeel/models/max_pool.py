"""2 x 2 max pooling that evaluates faster on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MaxPool(nn.MaxPool2d):
    """The same bits as `nn.MaxPool2d(2)`: [..., H, W] -> [..., H // 2, W // 2]. An odd last row or column is dropped.

    torch visits the windows one by one. Comparing whole rows and columns takes a tenth of the time, which makes an
    evaluation of LeNet-5 1.6 times as fast. Its gradient would be slower than torch's, so training uses torch's pooling.

    Our models pool before a ReLU. The ReLU then has a quarter of the numbers, and outputs and gradients have the same bits:
    the largest number of a window stays the largest, and its gradient is zero if it is negative.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            pooled: Tensor = super().forward(x)
            return pooled
        height, width = (side // 2 * 2 for side in x.shape[-2:])
        rows = torch.maximum(x[..., :height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])
