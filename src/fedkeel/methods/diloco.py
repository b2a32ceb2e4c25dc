"""DiLoCo: long local AdamW, and Nesterov momentum on the server."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.adam import adam_step


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] momentum of the mean displacement


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    a: Tensor  # [d] first moment
    b: NotNegative  # [d] second moment
    n: NotNegative  # [1] local steps that the moments have seen


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "diloco",
    paper="Douillard et al. 2023, DiLoCo, Algorithm 1",
    sends="x",
    exact=False,
    solves="communication adaptivity",
    family="client-adaptive",
    local="AdamW",
    step="Nesterov momentum",
    same=["inner=sgd lr=0.1 momentum=0 server_lr=1 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class DiLoCo(Algorithm):
    """Clients run AdamW for many steps and keep their moments; the server applies Nesterov momentum to the mean change.

    Prefer it when a few strong sites train a large model over a slow network, with hundreds of local steps a round. Clients
    must be few and steady, because each keeps its Adam state. If they take part rarely, set state="reset".

    Differs from the paper: clients may be absent; their moments are then stale. A client whose upload is lost starts again
    from the shared model. The learning rate has no warm-up.
    UNCONFIRMED: the paper names Nesterov momentum without its formula; this is the form of three public codes. beta2.
    """

    lr: float = hp(4e-4, "local step size", above=0)
    lam: float = hp(0.1, "decoupled weight decay of AdamW", least=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.95, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "added to the root of the second moment", above=0)
    server_lr: float = hp(0.7, "outer step size", above=0, grid=(0.1, 0.3, 0.5, 0.7, 1))
    momentum: float = hp(0.9, "outer momentum", least=0, below=1, grid=(0.8, 0.9, 0.95))
    state: str = hp("keep", "what a client does with its moments after a round", choices=("keep", "reset"))
    inner: str = hp("adamw", "the clients' optimiser; sgd keeps nothing and ignores lam", choices=("adamw", "sgd"))

    def init(self, x: Tensor) -> tuple[Server, Client | None]:
        zero = torch.zeros_like(x)
        kept = Client(a=zero, b=zero, n=x.new_zeros(1)) if self.inner == "adamw" and self.state == "keep" else None
        return Server(x=x, m=zero), kept

    def client(self, down: Down, mem: Client | None, steps: Steps) -> tuple[Up, Client | None]:
        w = steps.copy(down.x)
        if self.inner == "sgd":
            for grad in steps:
                grad.descend(w, self.lr)
            return Up(dx=w - down.x), None
        a, b = (steps.copy(mem.a), steps.copy(mem.b)) if mem else (steps.zeros(), steps.zeros())
        for k, grad in enumerate(steps, start=1):
            n = mem.n + k if mem else k
            g = steps.clip(grad(w))
            w.mul_(1 - self.lr * self.lam)
            adam_step(w, g, a, b, self.lr, (self.beta1, self.beta2), self.eps, n)
        return Up(dx=w - down.x), Client(a=a, b=b, n=mem.n + steps.K) if mem else None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        m = self.momentum * s.m + dx
        return Server(x=s.x + self.server_lr * (dx + self.momentum * m), m=m)
