"""FAFED: local STORM momentum over one adaptive denominator."""

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
    m: Tensor  # [d] mean of the clients' momenta
    v: Tensor  # [d] mean of their second moments


class Client(NamedTuple):
    x_prev: Tensor  # [d] where this client took its last gradient, x_0 before its first round


class First(NamedTuple):
    g: Tensor  # [d] gradient of one batch at x_0


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    m: Tensor  # [d] momentum after the local steps
    v: NotNegative  # [d] second moment after them


@algorithm(
    "fafed",
    paper="Wu et al. 2023, Faster Adaptive Federated Learning, Algorithm 1",
    sends="x m v",
    exact=False,
    solves="adaptivity drift",
    family="client-adaptive",
    local="STORM, v frozen",
    step="average x, m, v",
    gradients=2,
)
@dataclass(frozen=True, kw_only=True)
class FAFED(Algorithm):
    """Clients run variance-reduced (STORM) momentum, divided by a shared second moment that is frozen in the round.

    Prefer it when gradients are noisy, all clients take part in every round and three vectors per round are affordable.
    The first momentum takes one batch of every client before round 0.

    Differs from public code: the gradient at x_prev counts in full, so that the noise of the batch cancels. (The script for
    images multiplies it by 0.95, its `ext`; the script for texts does not.) As in that code, a client's first x_prev is
    x_0, where the first momentum was taken, although round 0 starts from x_1 = x_0 - lr m_0. Also as in that code, the
    first step of a round compares the new global model with the client's last point.
    UNCONFIRMED: a, beta and rho are the defaults of the public scripts; the paper's values are not known. In its theory
    lr and a decay; here they are constant.
    """

    lr: float = hp(0.03, "eta, step size", above=0)
    a: float = hp(0.1, "how fast the momentum forgets: 1 is plain SGD", least=0, most=1)
    beta: float = hp(0.1, "decay of the second moment", least=0, below=1)
    rho: float = hp(0.1, "added to the root of v", above=0)
    allow_partial: bool = hp(False, "allow rounds without some clients, although the method is made for all")

    def plan(self, p: Plan) -> Self:
        need_everyone(self.name, p, self.allow_partial)
        return self

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, m=torch.zeros_like(x), v=torch.zeros_like(x)), Client(x_prev=x)

    def warms_up(self) -> bool:
        return True

    def warmup(self, down: Server, mem: Client, steps: Steps) -> tuple[First, Client]:
        grad = next(iter(steps))
        return First(g=grad(down.x).clone()), Client(x_prev=steps.copy(down.x))

    def warmup_server(self, s: Server, up: First, r: Round) -> Server:
        m = s.m + r.share(up.g)
        v = s.v + r.share(up.g**2)
        return Server(
            x=s.x - self.lr * m if r.last else s.x, m=m, v=v
        )  # x moves only when all clients have sent their gradient at x_0

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w, m, v = steps.copy(down.x), steps.copy(down.m), steps.copy(down.v)
        x_prev = steps.copy(mem.x_prev)
        root = down.v.sqrt() + self.rho
        for grad in steps:
            g = grad(w)
            m.sub_(grad(x_prev)).mul_(1 - self.a).add_(g)
            v.mul_(self.beta).addcmul_(g, g, value=1 - self.beta)
            x_prev.copy_(w)
            w.addcdiv_(steps.clip(m.clone()), root, value=-self.lr)
        return Up(dx=w - down.x, m=m, v=v), Client(x_prev=x_prev)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx), m=r.avg(up.m), v=r.avg(up.v))
