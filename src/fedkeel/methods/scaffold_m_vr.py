"""SCAFFOLD-M-VR: SCAFFOLD-M with variance-reduced (STORM) directions."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.tracking import mean_gradient


class Server(NamedTuple):
    x: Tensor  # [d] global model
    x_prev: Tensor  # [d] global model of the round before
    b: Tensor  # [d] beta c + (1 - beta) g: clients need c and g only in this sum
    c: Tensor  # [d] control variate: the mean of all clients' c
    g: Tensor  # [d] momentum: the mean direction of the last round


class Down(NamedTuple):
    x: Tensor  # [d] global model
    x_prev: Tensor  # [d] global model of the round before
    b: Tensor  # [d] beta c + (1 - beta) g: clients need c and g only in this sum


class Client(NamedTuple):
    c: Tensor  # [d] this client's mean gradient of its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "scaffold-m-vr",
    paper="Cheng et al. 2024; direction from Yan et al. 2025 (PAdaMFed), Algorithm 2",
    sends="x x_prev b",
    exact=True,
    solves="drift",
    family="tracking",
    local="STORM",
    correction="g(w) + beta (c - c_i) + (1 - beta) (mean direction - g(x_prev))",
    step="gamma",
    gradients=2,
    same=["beta=1 lr=0.1 -> scaffold"],
)
@dataclass(frozen=True, kw_only=True)
class ScaffoldMVR(Algorithm):
    """SCAFFOLD-M with a second gradient, at the last round's model on the same batch, that cancels sampling noise.

    Prefer it to SCAFFOLD-M when gradients are noisy and a local step may cost twice as much; a small beta then needs a
    small lr, too. It still has the minimiser of the global loss as its fixed point.

    Differs from the paper: the original listing was not available (UNCONFIRMED). The direction is PAdaMFed-VR's before
    normalisation, and the server step follows from its recursion. By default c, c_i start at zero (`start="warmup"` starts
    them as PAdaMFed does). In a run with `clip`, c_i is the mean of the gradients before clipping, as PAdaMFed's line 10.
    """

    lr: float = hp(0.1, "eta, local step size", above=0)
    beta: float = hp(0.5, "weight of the new direction", above=0, most=1)
    gamma: float | None = hp(None, "server step on the mean direction; None: server_lr * lr * K", above=0)
    server_lr: float = hp(1.0, "eta_g, used while gamma is None", above=0)
    start: str = hp("zero", "first control variates: zero, or a mean gradient of every client", choices=("zero", "warmup"))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        zero = torch.zeros_like(x)
        return Server(x=x, x_prev=x, b=zero, c=zero, g=zero), Client(c=zero)

    def warms_up(self) -> bool:
        return self.start == "warmup"

    def warmup(self, down: Down, mem: Client, steps: Steps) -> tuple[Client, Client]:
        return mean_gradient(down.x, steps, Client)

    def warmup_server(self, s: Server, up: Client, r: Round) -> Server:
        c = s.c + r.share(up.c)
        return s._replace(b=c, c=c, g=c)

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        drift = down.b - self.beta * mem.c
        c_new = steps.zeros()
        for grad in steps:
            g = grad(w)
            c_new.add_(g, alpha=1 / steps.K)
            u = g.add_(drift).sub_(grad(down.x_prev), alpha=1 - self.beta)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        g = r.avg(up.dx) / (-self.lr * r.K_mean)
        c = s.c + r.share(up.dc)
        gamma = self.server_lr * self.lr * r.K_mean if self.gamma is None else self.gamma
        return Server(x=s.x - gamma * g, x_prev=s.x, b=self.beta * c + (1 - self.beta) * g, c=c, g=g)
