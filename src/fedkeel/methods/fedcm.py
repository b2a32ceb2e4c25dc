"""FedCM: local SGD with the momentum of the global direction."""

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
    g: Tensor  # [d] mean direction of the last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedcm",
    paper="Xu et al. 2021, Algorithm 2 (FedAvg-M of Cheng et al. 2024)",
    sends="x g",
    exact=False,
    family="momentum",
    correction="alpha g + (1 - alpha) mean direction",
    same=["alpha=1 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class FedCM(Algorithm):
    """Every local step is a mix of the client's own gradient (alpha) and the mean direction of the last round.

    Prefer it under partial participation with stateless clients: the shared direction aligns clients that rarely take
    part. The smaller alpha, the less the clients drift and the staler the direction.

    Weight decay is part of the gradient, so alpha multiplies it. With `wd_outside_mix` it does not, as in public code.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    alpha: float = hp(0.1, "weight of the client's own gradient", least=0, most=1, grid=(0.05, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)
    wd_outside_mix: bool = hp(False, "weight decay is not multiplied by alpha")

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, g=torch.zeros_like(x)), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            u = grad(w).mul_(self.alpha).add_(down.g, alpha=1 - self.alpha)
            if self.wd_outside_mix:
                u.add_(w, alpha=(1 - self.alpha) * steps.objective.weight_decay)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        return Server(x=s.x + self.server_lr * dx, g=dx / (-self.lr * r.K_mean))
