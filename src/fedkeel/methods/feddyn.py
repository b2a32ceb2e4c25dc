"""FedDyn: a regulariser that aligns the clients' minimisers with the global one."""

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
    h: Tensor  # [d] the mean of all clients' lam


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    lam: Tensor  # [d] estimate of the local gradient at this client's last local model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "feddyn",
    paper="Acar et al. 2021, Algorithm 1",
    sends="x",
    exact=True,
    family="tracking",
    correction="- lam_i + alpha (w - x)",
    step="average - h / alpha",
)
@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """Each client's loss gets a linear and a quadratic term. At convergence its minimiser is then the global one.

    Prefer it to SCAFFOLD when local work is long enough to nearly solve the local problem: same fixed point, half the
    communication. With few local steps choose a larger alpha, since the server divides by it; alpha = 0 is not FedAvg.

    Differs from the authors' code: alpha is not scaled with the clients' sizes. The model that is evaluated is x, the
    server's, not the mean of all local models.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    alpha: float = hp(0.1, "strength of the regulariser", above=0, grid=(0.001, 0.01, 0.1))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, h=torch.zeros_like(x)), Client(lam=torch.zeros_like(x))

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        for grad in steps:
            u = grad(w).sub_(mem.lam).add_(w - down.x, alpha=self.alpha)
            w.sub_(steps.clip(u), alpha=self.lr)
        dx = w - down.x
        return Up(dx=dx), Client(lam=mem.lam - self.alpha * dx)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        h = s.h - self.alpha * r.share(up.dx)
        return Server(x=s.x + r.avg(up.dx) - h / self.alpha, h=h)
