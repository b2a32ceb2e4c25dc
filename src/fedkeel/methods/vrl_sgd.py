"""VRL-SGD: local SGD corrected by how far a client was from the average."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.participation import need_everyone


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    h: Tensor  # [d] estimate of this client's gradient minus the mean gradient
    w: Tensor  # [d] final local model of its last round
    rate: NotNegative  # [1] 1 / (lr K) of that round, 0 before the first


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "vrl-sgd",
    paper="Liang et al. 2019, Variance Reduced Local SGD, Algorithm 1",
    sends="x",
    exact=True,
    solves="drift communication",
    family="tracking",
    correction="- h_i",
)
@dataclass(frozen=True, kw_only=True)
class VRLSGD(Algorithm):
    """Every client compares the average it receives with what it had sent. The gap is its drift, and corrects its steps.

    Prefer it to SCAFFOLD when all clients take part in every round: the path is the same, at half the communication. The
    minimiser of the global loss is its fixed point whatever K is.

    Differs from public code: the correction is not damped by a constant. The gap is divided by the learning rate of the
    round that made it, which matters once the rate decays. If the K_i differ, the corrections do not sum to zero.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    allow_partial: bool = hp(False, "allow rounds without some clients, although the method is made for all")

    def plan(self, p: Plan) -> Self:
        need_everyone(self.name, p, self.allow_partial)
        return self

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(h=torch.zeros_like(x), w=x, rate=x.new_zeros(1))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        h = mem.h + mem.rate * (down.x - mem.w)
        for grad in steps:
            w.sub_(steps.clip(grad(w).sub_(h)), alpha=self.lr)
        return Up(dx=w - down.x), Client(h=h, w=w, rate=torch.full_like(mem.rate, 1 / (self.lr * steps.K)))

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx))
