"""Scaffnew (ProxSkip): control variates, and rounds of random length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp, planned
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.participation import need_everyone


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    h: Tensor  # [d] control variate: estimate of this client's gradient at the minimiser
    w: Tensor  # [d] final local model of its last round
    rate: NotNegative  # [1] p / lr of that round, 0 before the first


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "scaffnew",
    paper="Mishchenko et al. 2022, ProxSkip, Algorithm 2",
    sends="x",
    exact=True,
    solves="communication drift",
    family="tracking",
    local="SGD, random K",
    correction="- h_i",
)
@dataclass(frozen=True, kw_only=True)
class Scaffnew(Algorithm):
    """Local SGD corrected by a control variate h_i. After every step, clients communicate with probability p.

    Prefer it when all clients take part and communication is expensive. On strongly convex losses, with
    p = 1 / sqrt(condition number), it needs provably fewer rounds than gradient descent.
    The minimiser of the global loss is its fixed point.

    Differs from the paper: a round is what lies between two communications, so its number of steps is one geometric draw
    for all clients; by default its mean is the run's K. h_i is updated when the next x arrives.
    """

    lr: float = hp(0.1, "gamma, step size", above=0)
    p: float | None = hp(None, "probability to communicate after a step; None: 1 / K", above=0, most=1)
    schedule: str = hp("geometric", "steps of a round: drawn, or always 1 / p", choices=("geometric", "fixed"))
    allow_partial: bool = hp(False, "allow rounds without some clients, although the method is made for all")

    def plan(self, p: Plan) -> Self:
        need_everyone(self.name, p, self.allow_partial)
        return replace(self, p=self.p or 1 / p.K)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(h=torch.zeros_like(x), w=x, rate=x.new_zeros(1))

    def draw(self, rng: np.random.Generator, ids: Sequence[int]) -> dict[str, np.ndarray]:
        p = planned(self.p)
        K = rng.geometric(p) if self.schedule == "geometric" else round(1 / p)
        return {"K": np.full(len(ids), K)}

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        h = mem.h + mem.rate * (down.x - mem.w)
        for grad in steps:
            w.sub_(steps.clip(grad(w).sub_(h)), alpha=self.lr)
        return Up(dx=w - down.x), Client(h=h, w=w, rate=torch.full_like(mem.rate, planned(self.p) / self.lr))

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx))
