"""SCAFFOLD-M: SCAFFOLD with client-side momentum."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.tracking import mean_gradient, track


class Server(NamedTuple):
    x: Tensor  # [d] global model
    b: Tensor  # [d] beta c + (1 - beta) g: clients need c and g only in this sum
    c: Tensor  # [d] control variate: the mean of all clients' c
    g: Tensor  # [d] momentum: the mean direction of the last round


class Down(NamedTuple):
    x: Tensor  # [d] global model
    b: Tensor  # [d] beta c + (1 - beta) g: clients need c and g only in this sum


class Client(NamedTuple):
    c: Tensor  # [d] this client's mean gradient of its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "scaffold-m",
    paper="Cheng et al. 2024; direction from Yan et al. 2025 (PAdaMFed), sections 3 and 4.3",
    sends="x b",
    exact=True,
    solves="drift",
    family="tracking",
    correction="beta (g - c_i + c) + (1 - beta) mean direction",
    step="gamma",
    same=["beta=1 -> scaffold"],
)
@dataclass(frozen=True, kw_only=True)
class ScaffoldM(Algorithm):
    """SCAFFOLD whose local direction is mixed with the mean direction of the last round, with weight 1 - beta.

    Prefer it to SCAFFOLD when gradients are noisy: the momentum averages over rounds, and the step can be larger. It
    still has the minimiser of the global loss as its fixed point.

    Differs from the paper: the original listing was not available (UNCONFIRMED). The server step follows from the
    recursion in the PAdaMFed paper. By default c, c_i start at zero (`start="warmup"` starts them as PAdaMFed does). In
    a run with `clip`, c_i follows the clipped directions, as in SCAFFOLD.
    """

    lr: float = hp(0.1, "eta, local step size", above=0)
    beta: float = hp(0.1, "weight of the corrected gradient", above=0, most=1)
    gamma: float | None = hp(None, "server step on the mean direction; None: server_lr * lr * K", above=0)
    server_lr: float = hp(1.0, "eta_g, used while gamma is None", above=0)
    start: str = hp("zero", "first control variates: zero, or a mean gradient of every client", choices=("zero", "warmup"))

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
        w = steps.copy(down.x)
        drift = down.b - self.beta * mem.c
        c_new = steps.zeros()
        for grad in steps:
            w.sub_(track(c_new, grad(w), drift, steps, weight=self.beta), alpha=self.lr)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        g = r.avg(up.dx) / (-self.lr * r.K_mean)
        c = s.c + r.share(up.dc)
        gamma = self.server_lr * self.lr * r.K_mean if self.gamma is None else self.gamma
        return Server(x=s.x - gamma * g, b=self.beta * c + (1 - self.beta) * g, c=c, g=g)
