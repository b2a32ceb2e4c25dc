"""FedAvgM: FedAvg with heavy-ball momentum on the server."""

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
    m: Tensor  # [d] momentum of the mean displacement


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedavgm",
    paper="Hsu et al. 2019; Luo et al. 2023 (GradMA), Algorithm 5",
    sends="x",
    exact=False,
    solves="drift communication",
    family="SGD",
    step="heavy ball",
    same=["beta1=0 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm):
    """FedAvg whose server keeps a momentum of the averaged displacement and moves along it.

    Prefer it when few clients take part in a round: the momentum averages over the cohorts of several rounds. At the same
    server_lr it moves about 1 / (1 - beta1) times as far as FedAvg.

    Differs from other public code: heavy ball as in the GradMA paper, neither Nesterov nor damped by 1 - beta1.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    beta1: float = hp(0.9, "server momentum", least=0, below=1, grid=(0.1, 0.5, 0.9))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, m=torch.zeros_like(x)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m = self.beta1 * s.m + r.avg(up.dx)
        return Server(x=s.x + self.server_lr * m, m=m)
