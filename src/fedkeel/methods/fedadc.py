"""FedADC: the server's momentum, spread over the local steps."""

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
    m: Tensor  # [d] momentum, in units of a sum of K gradients


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedadc",
    paper="Ozfatura et al. 2021, FedADC, Algorithm 2",
    sends="x m",
    exact=False,
    family="momentum",
    correction="+ beta_l m / K",
    step="heavy ball, beta_g - beta_l",
    same=["beta_l=0 lr=0.1 -> fedavgm beta1=0.9", "beta_g=0.5 beta_l=0.5 lr=0.05 -> fedcm alpha=0.5 lr=0.1"],
)
@dataclass(frozen=True, kw_only=True)
class FedADC(Algorithm):
    """Clients add a K-th part of the server's momentum to every step, so that they walk along it instead of jumping.

    Prefer it to FedAvgM when clients drift: the momentum acts while they compute their gradients. With beta_g = beta_l it
    is FedCM with alpha = 1 - beta_l and its learning rate divided by alpha, so choose a small lr.

    UNCONFIRMED: the listing is from memory. Public code confirms the local step g + beta_l m, but neither the 1 / K nor the
    server's beta_g - beta_l. The identity with FedCM holds because of these two. The paper's Nesterov form is left out.
    """

    lr: float = hp(0.01, "eta_l, local step size", above=0)
    beta_g: float = hp(0.9, "global momentum", least=0, below=1)
    beta_l: float = hp(0.9, "the part of it that clients apply", least=0, below=1)
    server_lr: float = hp(1.0, "alpha_s, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, m=torch.zeros_like(x)), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            u = grad(w).add_(down.m, alpha=self.beta_l / steps.K)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m = (self.beta_g - self.beta_l) * s.m - r.avg(up.dx) / self.lr
        return Server(x=s.x - self.server_lr * self.lr * m, m=m)
