"""SlowMo: local SGD with a slow momentum over the rounds."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model
    u: Tensor  # [d] slow momentum, in units of a gradient


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "slowmo",
    paper="Wang et al. 2020, SlowMo, Algorithm 1",
    sends="x",
    exact=False,
    solves="communication",
    family="SGD",
    local="SGD, momentum",
    step="slow momentum on dx / lr",
    same=["beta=0 -> fedavg", "beta=0.9 -> fedavgm beta1=0.9"],
)
@dataclass(frozen=True, kw_only=True)
class SlowMo(Algorithm):
    """FedAvg, plain or with local momentum, whose server keeps a momentum of the displacement divided by the local lr.

    Prefer it to FedAvgM when the local learning rate decays: the momentum is kept in units of a gradient, so past rounds
    do not count for more than the present one. At a constant learning rate the two are the same.

    Differs from the paper: any base optimiser is allowed there, and its buffers may be kept, averaged or reset; here it
    is SGD with momentum whose buffer is reset every round.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    momentum: float = hp(0.0, "local momentum, starts at 0 in every round", least=0, below=1)
    beta: float = hp(0.5, "slow momentum", least=0, below=1)
    alpha: float = hp(1.0, "slow learning rate", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, u=torch.zeros_like(x)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        z = steps.zeros()
        for grad in steps:
            z.mul_(self.momentum).add_(steps.clip(grad(w)))
            w.sub_(z, alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        u = self.beta * s.u - r.avg(up.dx) / self.lr
        return Server(x=s.x - self.alpha * self.lr * u, u=u)
