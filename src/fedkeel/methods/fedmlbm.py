"""FedMLBM: FedMLB with server momentum."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.loss_terms import branches


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] momentum of the mean displacement


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedmlbm",
    paper="Kim et al. 2022, Algorithm 1; momentum of Luo et al. 2023 (GradMA)",
    sends="x",
    exact=False,
    solves="drift",
    family="representation",
    correction="branch losses",
    needs="blocks",
    step="heavy ball",
    same=["beta1=0 -> fedmlb", "lam2=0 lam3=0 -> fedavgm"],
)
@dataclass(frozen=True, kw_only=True)
class FedMLBM(Algorithm):
    """FedMLB whose server keeps a heavy-ball momentum of the averaged displacement, as FedAvgM does.

    Prefer it to FedMLB when few clients take part in a round. Costs and needs are those of FedMLB.

    Differs from the authors' code: as FedMLB.
    UNCONFIRMED: lam1 to lam3 are the defaults of the code; the values tuned in the paper are not known.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    lam1: float = hp(1.0, "weight of the main path's loss", least=0)
    lam2: float = hp(1.0, "weight of the branches' loss", least=0)
    lam3: float = hp(1.0, "weight of the divergence of the branches from the main path", least=0)
    temperature: float = hp(1.0, "tau of the divergence", above=0)
    beta1: float = hp(0.9, "server momentum", least=0, below=1, grid=(0.1, 0.5, 0.9))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, m=torch.zeros_like(x)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            # `grad.plus` already counts the loss of the main path once, so the term adds lam1 - 1 of it.
            u = grad.plus(branches(self.lam1 - 1, self.lam2, self.lam3, self.temperature), w, down.x)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m = self.beta1 * s.m + r.avg(up.dx)
        return Server(x=s.x + self.server_lr * m, m=m)
