"""PAdaMFed: unit-length steps, control variates and momentum, free of problem parameters."""

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
    b: Tensor  # [d] beta c + (1 - beta) g: clients need c and g only in this sum
    c: Tensor  # [d] control variate: the mean of all clients' c
    g: Tensor  # [d] momentum


class Down(NamedTuple):
    x: Tensor  # [d] global model
    b: Tensor  # [d] beta c + (1 - beta) g: clients need c and g only in this sum


class Client(NamedTuple):
    c: Tensor  # [d] this client's mean gradient of its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "padamfed",
    paper="Yan et al. 2025, Problem-Parameter-Free Federated Learning, Algorithm 1",
    sends="x b",
    exact=True,
    solves="adaptivity drift",
    family="tracking",
    local="unit-norm SGD",
    correction="beta (g - c_i + c) + (1 - beta) momentum",
    step="gamma",
    uniform=True,
    same=["beta=1 -> scaffold-normalized"],
)
@dataclass(frozen=True, kw_only=True)
class PAdaMFed(Algorithm):
    """Every local step has length lr, along a mix of SCAFFOLD's corrected gradient and the server's momentum.

    Prefer it only when nothing can be tuned: the step sizes follow from S, K and the number of rounds, and without weight
    decay multiplying the loss by a constant changes nothing. With four learning rates to try, FedAvg, SCAFFOLD and
    SCAFFOLD-M were 4.6 to 5.1 points ahead of it on MNIST after 400 rounds (five seeds; results/ppf-theory). It visits all
    clients once before round 0, for their first control variates.

    Differs from the paper: c_i is the mean over k = 0..K-1 (line 10 prints 1..K; equation 2 and Algorithm 2 do not), and
    beta is capped at 1, as the proof needs.
    """

    lr: float | None = hp(None, "eta, length of a local step; None: 1 / (K sqrt T)", above=0)
    gamma: float | None = hp(None, "server step; None: (S K)^(1/4) / T^(3/4)", above=0)
    beta: float | None = hp(None, "weight of the corrected gradient; None: sqrt(S K / T), at most 1", above=0, most=1)
    start: str = hp("warmup", "first control variates: a mean gradient of every client, or zero", choices=("warmup", "zero"))

    def plan(self, p: Plan) -> Self:  # Theorem 1
        lr = self.lr or 1 / (p.K * p.T**0.5)
        gamma = self.gamma or (p.S * p.K) ** 0.25 / p.T**0.75
        return replace(self, lr=lr, gamma=gamma, beta=self.beta or min(1.0, (p.S * p.K / p.T) ** 0.5))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        zero = torch.zeros_like(x)
        return Server(x=x, b=zero, c=zero, g=zero), Client(c=zero)

    def warms_up(self) -> bool:
        return self.start == "warmup"

    def warmup(self, down: Down, mem: Client, steps: Steps) -> tuple[Client, Client]:
        return mean_gradient(down.x, steps, Client)

    def warmup_server(self, s: Server, up: Client, r: Round) -> Server:
        c = s.c + r.share(up.c)
        return Server(x=s.x, b=c, c=c, g=c)

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        lr, beta = planned(self.lr), planned(self.beta)
        w = steps.copy(down.x)
        drift = down.b - beta * mem.c
        c_new = steps.zeros()
        for grad in steps:
            g = grad(w)
            c_new.add_(g, alpha=1 / steps.K)  # line 10
            u = torch.add(drift, g, alpha=beta, out=g)  # line 7: beta (g - c_i + c) + (1 - beta) momentum
            unit_step(w, u, lr)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        lr, gamma, beta = planned(self.lr), planned(self.gamma), planned(self.beta)
        x = s.x + gamma / (lr * r.K_mean) * r.avg(up.dx)
        g = beta * (r.avg(up.dc) + s.c) + (1 - beta) * s.g
        c = s.c + r.share(up.dc)
        return Server(x=x, b=beta * c + (1 - beta) * g, c=c, g=g)
