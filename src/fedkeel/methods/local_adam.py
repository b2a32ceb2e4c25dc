"""LocalAdam, private moments: FedAvg with Adam on the clients."""

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
    x: Tensor  # [d] global model


class Client(NamedTuple):
    v: NotNegative  # [d] second moment after this client's last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "local-adam",
    paper="baseline of Parameter Tracking in Federated Learning with Adaptive Optimization",
    sends="x",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="AMSGrad",
)
@dataclass(frozen=True, kw_only=True)
class LocalAdam(Algorithm):
    """Every client runs AMSGrad from the global model and keeps its second moment to itself; the server averages.

    The plain way to use Adam in federated learning. Prefer FAdamGT or FedLADA where clients differ: each client divides
    by its own second moment, which pulls them further apart.

    Differs from the paper: it only says "FedAvg with Adam"; this is FAdam's local rule with the tracking switched off.
    """

    lr: float = hp(1e-3, "eta_l, local step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "added to the root of v_hat", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(v=torch.zeros_like(x))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        moments = Adam.start(steps, v=mem.v, beta1=self.beta1, beta2=self.beta2)
        for grad in steps:
            moments.descend(w, steps.clip(grad(w)), self.lr, self.eps)
        return Up(dx=w - down.x), Client(v=moments.v)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
