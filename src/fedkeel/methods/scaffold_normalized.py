"""Normalized SCAFFOLD: control variates and steps of unit length."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp, planned
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.normalized import unit_step
from fedkeel.rules.tracking import mean_gradient


class Server(NamedTuple):
    x: Tensor  # [d] global model
    c: Tensor  # [d] control variate: the mean of all clients' c


class Client(NamedTuple):
    c: Tensor  # [d] this client's mean gradient of its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "scaffold-normalized",
    paper="Yan et al. 2025 (PAdaMFed), ablation of Figure 5",
    sends="x c",
    exact=True,
    family="tracking",
    local="unit-norm SGD",
    correction="+ c - c_i",
    step="gamma",
    uniform=True,
)
@dataclass(frozen=True, kw_only=True)
class ScaffoldNormalized(Algorithm):
    """PAdaMFed without its momentum: SCAFFOLD's corrected direction, every local step scaled to length lr.

    It shows what normalisation alone brings. For practical use prefer PAdaMFed. No step size needs tuning, but with noisy
    gradients the unit steps keep moving around the minimiser at a distance of about gamma.

    Differs from the paper: it gives no step sizes for this ablation, so PAdaMFed's are used.
    """

    lr: float | None = hp(None, "eta, length of a local step; None: 1 / (K sqrt T)", above=0)
    gamma: float | None = hp(None, "server step; None: (S K)^(1/4) / T^(3/4)", above=0)
    start: str = hp("warmup", "first control variates: a mean gradient of every client, or zero", choices=("warmup", "zero"))

    def plan(self, p: Plan) -> Self:
        lr = self.lr or 1 / (p.K * p.T**0.5)
        return replace(self, lr=lr, gamma=self.gamma or (p.S * p.K) ** 0.25 / p.T**0.75)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, c=torch.zeros_like(x)), Client(c=torch.zeros_like(x))

    def warms_up(self) -> bool:
        return self.start == "warmup"

    def warmup(self, down: Server, mem: Client, steps: Steps) -> tuple[Client, Client]:
        return mean_gradient(down.x, steps, Client)

    def warmup_server(self, s: Server, up: Client, r: Round) -> Server:
        return Server(x=s.x, c=s.c + r.share(up.c))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        lr = planned(self.lr)
        w = steps.copy(down.x)
        drift = down.c - mem.c
        c_new = steps.zeros()
        for grad in steps:
            g = grad(w)
            c_new.add_(g, alpha=1 / steps.K)
            unit_step(w, g.add_(drift), lr)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        lr, gamma = planned(self.lr), planned(self.gamma)
        return Server(x=s.x + gamma / (lr * r.K_mean) * r.avg(up.dx), c=s.c + r.share(up.dc))
