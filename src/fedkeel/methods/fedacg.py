"""FedACG: clients start where the server's momentum will lead."""

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
    m: Tensor  # [d] momentum
    z: Tensor  # [d] where clients start: x + lam m


class Down(NamedTuple):
    z: Tensor  # [d] where clients start


class Up(NamedTuple):
    dz: Tensor  # [d] local model minus z


@algorithm(
    "fedacg",
    paper="Kim et al. 2024, FedACG",
    sends="z",
    exact=False,
    solves="drift absence",
    family="momentum",
    correction="starts ahead; + beta (w - z)",
    step="momentum",
    same=["lam=0 beta=0 -> fedavg", "lam=0 -> fedprox mu=0.001"],
)
@dataclass(frozen=True, kw_only=True)
class FedACG(Algorithm):
    """The server sends z, the model after one more step of its momentum. Clients start there and are pulled back to it.

    Prefer it with very few participants a round and clients that keep nothing. Clients feel the server's momentum from
    their first step, at FedAvg's price.

    Differs from the authors' code: the pull is beta (w - z). The code has twice that, so beta = 0.002 copies its runs. The
    learning rate does not decay within a round, and buffers get no momentum.
    UNCONFIRMED: that the paper's penalty has the factor 1/2.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    lam: float = hp(0.85, "lambda, momentum of the server", least=0, below=1)
    beta: float = hp(0.001, "strength of the pull to z", least=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, m=torch.zeros_like(x), z=x), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.z)
        for grad in steps:
            u = grad(w).add_(w - down.z, alpha=self.beta)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dz=w - down.z), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m = self.lam * s.m + r.avg(up.dz)
        x = s.x + m
        return Server(x=x, m=m, z=x + self.lam * m)
