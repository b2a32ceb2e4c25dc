"""FedSPS: local SGD with Polyak's step size."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedsps",
    paper="Mukherjee et al. 2024; step from Yan et al. 2025 (PAdaMFed), Table 1",
    sends="x",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="SGD, Polyak step",
)
@dataclass(frozen=True, kw_only=True)
class FedSPS(Algorithm):
    """FedAvg in which every local step takes its length from the loss: (F - l_star) / (c ||g||^2), at most eta_b.

    Prefer it when step sizes cannot be tuned and the model can fit all data, so that the best loss is about 0. With a best
    loss well above l_star the steps stay long and the result noisy.

    Differs from other methods here: lr_decay has no effect, and a zero gradient takes the step eta_b.
    UNCONFIRMED: c; reviews of the paper support l_star = 0 and eta_b = 1.
    """

    c: float = hp(0.5, "scale of Polyak's step: larger means shorter", above=0)
    eta_b: float = hp(1.0, "largest step size", above=0)
    l_star: float = hp(0.0, "a lower bound of every mini-batch's loss")

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            g = grad(w)
            square = g.square().sum(-1, keepdim=True)
            size = (grad.loss(w) - self.l_star).div_(self.c * square).clamp_max_(self.eta_b)
            w.sub_(steps.clip(g).mul_(torch.where(square > 0, size, self.eta_b)))
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx))

    def at(self, t: int, lr_decay: float = 1.0) -> Self:
        return self
