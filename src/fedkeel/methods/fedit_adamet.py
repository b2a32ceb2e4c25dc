"""FedIT-AdamET: local Adam on LoRA parameters, with tracking of the Adam directions."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.adam import Adam


class Server(NamedTuple):
    x: Tensor  # [d] global LoRA matrices and classification head
    y: Tensor  # [d] tracking variable: the mean of all clients' y


class Client(NamedTuple):
    y: Tensor  # [d] this client's mean Adam direction in its last round
    v: NotNegative  # [d] second moment after its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global
    dy: Tensor  # [d] change of the client's tracking variable


@algorithm(
    "fedit-adamet",
    paper="Parameter Tracking in Federated Learning with Adaptive Optimization, Algorithm 1 and section 6.3",
    sends="x y",
    exact=False,
    solves="adaptivity drift",
    family="tracking",
    local="AMSGrad",
    correction="+ y - y_i after the moments",
    same=["lr=0.001 server_lr=1 -> fadamet"],
)
@dataclass(frozen=True, kw_only=True)
class FedITAdamET(Algorithm):
    """FedIT-Adam whose every step is corrected by y - y_i, the tracked mean directions of all clients and of this one.

    In its paper it needs about as many rounds as FedIT-Adam; prefer FedIT-AdamGT. All participants track (Y = S),
    because adapters are small.

    Differs from the paper: v_hat restarts at the stored v (the listing leaves it open), and the server adds y_i's change
    (line 29; line 27 prints another difference). Default step sizes: those for 20 Newsgroups.
    """

    lr: float = hp(5e-3, "eta_l, local step size", above=0, grid=(5e-3, 1e-3, 1e-4, 3e-5))
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "added to the root of v_hat", above=0)
    server_lr: float = hp(0.1, "eta_g, server step size", above=0, grid=(0.1, 0.3))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        zero = torch.zeros_like(x)
        return Server(x=x, y=zero), Client(y=zero, v=zero)

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        drift = down.y - mem.y
        moments = Adam.start(steps, v=mem.v, beta1=self.beta1, beta2=self.beta2)
        for grad in steps:
            moments.descend(w, steps.clip(grad(w)), self.lr, self.eps)  # lines 13-17
            w.sub_(drift, alpha=self.lr)
        dx = w - down.x
        y_new = torch.add(drift, dx, alpha=1 / (steps.K * self.lr)).neg_()  # line 21: -dx / (K eta) - drift
        return Up(dx=dx, dy=y_new - mem.y), Client(y=y_new, v=moments.v)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx), y=s.y + r.share(up.dy))
