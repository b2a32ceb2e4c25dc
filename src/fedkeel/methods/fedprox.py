"""FedProx: local SGD held back by a proximal term."""

from dataclasses import dataclass
from typing import NamedTuple

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
    "fedprox",
    paper="Li et al. 2020, Algorithm 2",
    sends="x",
    exact=False,
    solves="drift",
    family="SGD",
    correction="+ mu (w - x)",
    same=["mu=0 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """FedAvg whose clients are pulled back to the global model with strength mu, which bounds how far they drift.

    Prefer it to FedAvg when local work is long or very uneven. It slows drift but does not remove it.

    Differs from the paper: all clients do the run's K steps, not an inexact solve that depends on the client.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    mu: float = hp(0.1, "strength of the proximal term", least=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            u = grad(w).add_(w - down.x, alpha=self.mu)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
