"""MOONM: MOON with server momentum."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.loss_terms import contrast


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] momentum of the mean displacement


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x_prev: Tensor  # [d] this client's last local model
    seen: NotNegative  # [1] 1 if there is one, else 0


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "moonm",
    paper="Li et al. 2021, Algorithm 1; momentum of Luo et al. 2023 (GradMA)",
    sends="x",
    exact=False,
    solves="drift",
    family="representation",
    correction="contrastive loss",
    needs="features",
    step="heavy ball",
    same=["beta1=0 -> moon", "mu=0 -> fedavgm"],
)
@dataclass(frozen=True, kw_only=True)
class MOONM(Algorithm):
    """MOON whose server keeps a heavy-ball momentum of the averaged displacement, as FedAvgM does.

    Prefer it to MOON when few clients take part in a round. Costs and needs are those of MOON.

    Differs from the paper: as MOON. The momentum is the GradMA paper's, not the damped one of MOON's repository.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    mu: float = hp(1.0, "weight of the contrastive term", least=0, grid=(0.001, 0.01, 0.1, 1, 5, 10))
    temperature: float = hp(0.5, "tau of the contrastive term", above=0)
    beta1: float = hp(0.9, "server momentum", least=0, below=1, grid=(0.1, 0.5, 0.9))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, m=torch.zeros_like(x)), Client(x_prev=x, seen=x.new_zeros(1))

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        for grad in steps:
            # A client without a last model has no term: its weight is 0.
            u = grad.plus(contrast(self.temperature), w, down.x, mem.x_prev, weight=self.mu * mem.seen)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), Client(x_prev=w, seen=torch.ones_like(mem.seen))

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m = self.beta1 * s.m + r.avg(up.dx)
        return Server(x=s.x + self.server_lr * m, m=m)
