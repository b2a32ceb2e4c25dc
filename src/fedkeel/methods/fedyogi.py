"""FedYogi: FedAvg's clients, Yogi on the server."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] first moment of the mean displacement
    v: Tensor  # [d] second moment of it


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedyogi",
    paper="Reddi et al. 2021, Algorithm 2",
    sends="x",
    exact=False,
    family="server-adaptive",
    step="Yogi",
)
@dataclass(frozen=True, kw_only=True)
class FedYogi(Algorithm):
    """Clients run SGD; the server takes the mean displacement as a gradient and makes a Yogi step with it.

    Prefer it to FedAdam when displacements become small suddenly: v then falls by a fixed amount and not by a factor, so
    the steps do not jump. Two learning rates need tuning together.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    server_lr: float = hp(0.01, "eta_g, server step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "1 - beta2 of the squared displacement goes into v", least=0, below=1)
    tau: float = hp(1e-3, "added to the root of v", least=0)
    v0: float | None = hp(None, "initial second moment; None: tau^2", least=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        v0 = self.tau**2 if self.v0 is None else self.v0
        return Server(x=x, m=torch.zeros_like(x), v=torch.full_like(x, v0)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        m = self.beta1 * s.m + (1 - self.beta1) * dx
        v = s.v - (1 - self.beta2) * dx**2 * (s.v - dx**2).sign()
        return Server(x=s.x + self.server_lr * m / (v.sqrt() + self.tau), m=m, v=v)
