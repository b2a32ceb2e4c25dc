"""FedSMOO: FedDyn whose clients agree on a common sharpness-aware perturbation."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.sam import unit


class Server(NamedTuple):
    x: Tensor  # [d] global model
    s: Tensor  # [d] global perturbation
    h: Tensor  # [d] the mean of all clients' lam


class Down(NamedTuple):
    x: Tensor  # [d] global model
    s: Tensor  # [d] global perturbation


class Client(NamedTuple):
    lam: Tensor  # [d] dual of the weights: estimate of the local gradient at this client's last local model
    mu: Tensor  # [d] dual of the perturbation


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    q: Tensor  # [d] dual of the perturbation minus the last perturbation


@algorithm(
    "fedsmoo",
    paper="Sun et al. 2023, FedSMOO",
    sends="x s",
    exact=False,
    solves="sharpness drift",
    family="tracking",
    local="SAM",
    correction="- lam_i + (w - x) / beta",
    step="average - beta h",
    gradients=2,
    same=["rho=0 -> feddyn", "rho=0 drop_e=true -> feddyn"],
)
@dataclass(frozen=True, kw_only=True)
class FedSMOO(Algorithm):
    """FedDyn on sharpness-aware gradients. A second dual variable aligns the clients' perturbations with a global one.

    Prefer it in FedDyn's setting, long local work and strong skew, when the final model overfits. It needs two vectors at
    each client and twice FedDyn's traffic.

    Differs from the authors' public code: the server's perturbation comes from mu_i - e, as independent implementations of
    the listing have it. That code leaves e out; drop_e=true does the same.
    UNCONFIRMED: the listing was not read. The sign of s: an early demo has the opposite one.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    beta: float = hp(10.0, "1 / beta is the strength of the regulariser", above=0)
    rho: float = hp(0.1, "r of the paper, radius of the perturbation", least=0)
    drop_e: bool = hp(False, "send the dual of the perturbation alone, as the authors' public code does")

    def init(self, x: Tensor) -> tuple[Server, Client]:
        zero = torch.zeros_like(x)
        return Server(x=x, s=zero, h=zero), Client(lam=zero, mu=zero)

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w, mu = steps.copy(down.x), steps.copy(mem.mu)
        e = steps.zeros()
        for grad in steps:
            e = self.rho * unit(grad(w) - mu - down.s)
            mu.add_(e).sub_(down.s)
            u = grad(w + e).sub_(mem.lam).add_(w - down.x, alpha=1 / self.beta)
            w.sub_(steps.clip(u), alpha=self.lr)
        dx = w - down.x
        return Up(dx=dx, q=mu.clone() if self.drop_e else mu - e), Client(lam=mem.lam - dx / self.beta, mu=mu)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        h = s.h - r.share(up.dx) / self.beta
        x = s.x + r.avg(up.dx) - self.beta * h
        return Server(x=x, s=self.rho * unit(r.avg(up.q)), h=h)
