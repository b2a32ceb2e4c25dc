"""FedLESAM: sharpness-aware clients without a second gradient."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.sam import unit


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x_old: Tensor  # [d] global model of this client's last round
    seen: NotNegative  # [1] 1 if there was such a round, else 0


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedlesam",
    paper="Fan et al. 2024, FedLESAM",
    sends="x",
    exact=False,
    solves="sharpness",
    family="SGD",
    local="SGD at a perturbed point",
    same=["rho=0 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class FedLESAM(Algorithm):
    """FedSAM whose perturbation points from the present global model to the one that the client got in its last round.

    Prefer it when you want FedSAM's effect at FedAvg's price, one gradient a step. It suits clients that take part often,
    so that their old global model is recent. A client has no perturbation in its first round.

    Differs from the authors' code: there the perturbation is the server's last update for every client, and an index into
    a flat vector shifts each parameter tensor by one constant number. Here it has one norm over all parameters, rho.
    UNCONFIRMED: the listing was not read; the paper's rho.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    rho: float = hp(0.1, "length of the perturbation", least=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(x_old=x, seen=x.new_zeros(1))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        e = self.rho * mem.seen * unit(mem.x_old - down.x)
        for grad in steps:
            w.sub_(steps.clip(grad(w + e)), alpha=self.lr)
        return Up(dx=w - down.x), Client(x_old=steps.copy(down.x), seen=torch.ones_like(mem.seen))

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
