"""FedNova: FedAvg in which the number of a client's local steps does not change its weight."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import Positive
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model
    u: Tensor  # [d] slow momentum; empty while beta is 0


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    a: Positive  # [1] how often this client's gradients count in dx: K for plain SGD


@algorithm(
    "fednova",
    paper="Wang et al. 2020, Tackling the Objective Inconsistency Problem, Algorithm 1",
    sends="x",
    exact=False,
    solves="drift",
    family="SGD",
    local="SGD, momentum or proximal",
    step="normalised average",
)
@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    """Clients send dx and a, how often their gradients count in it; the server averages the directions dx / a.

    Prefer it to FedAvg when the numbers of local steps differ: in FedAvg, clients with many steps then pull the result
    towards their own minimiser. With equal steps and neither momentum nor proximal term it is FedAvg.

    Differs from the paper: clients weigh equally unless weights="samples" (the paper weighs them by their samples, n_i).
    Differs from the authors' code: the weights are those of the round's participants (the code has no partial
    participation), and momentum together with mu is refused (the code applies both rules for a, one after the other).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    momentum: float = hp(0.0, "rho_m, local momentum, starts at 0 in every round", least=0, below=1)
    mu: float = hp(0.0, "strength of the proximal term", least=0)
    beta: float = hp(0.0, "slow momentum of the server", least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.mu:
            raise ValueError(f"fednova: mu = {self.mu!r} is not allowed with momentum; one of the two must be 0")

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, u=torch.zeros_like(x if self.beta else x[:0])), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        u = steps.zeros()
        q = a = 0.0
        for grad in steps:
            g = grad(w).add_(w - down.x, alpha=self.mu) if self.mu else grad(w)
            u.mul_(self.momentum).add_(steps.clip(g))
            w.sub_(u, alpha=self.lr)
            q = self.momentum * q + 1
            a = (1 - self.lr * self.mu) * a + q
        return Up(dx=w - down.x, a=torch.full_like(w[..., :1], a)), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        tau = r.K_mean if self.mu else r.avg(up.a)
        dx = tau * r.avg(up.dx / up.a)
        if not self.beta:
            return Server(x=s.x + dx, u=s.u)
        u = self.beta * s.u - dx / self.lr
        return Server(x=s.x - self.lr * u, u=u)
