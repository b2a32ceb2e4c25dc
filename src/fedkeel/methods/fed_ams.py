"""Fed-AMS: local AMSGrad with one preconditioner for all clients of a round."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model
    v_hat: Tensor  # [d] largest mean second moment so far


class Client(NamedTuple):
    m: Tensor  # [d] first moment after this client's last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    v: NotNegative  # [d] second moment after the local steps


@algorithm(
    "fed-ams",
    paper="Chen et al. 2020, local AMSGrad; update from Karimi et al. 2023 (Fed-LAMB), whose baseline it is",
    sends="x v_hat",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="AMSGrad, v_hat frozen",
    step="average, max of v",
)
@dataclass(frozen=True, kw_only=True)
class FedAMS(Algorithm):
    """Clients run AMSGrad with the server's v_hat, which stays frozen during the round and never decreases.

    Prefer it to LocalAdam where clients differ: all of them divide by the same vector, so their average is still a
    preconditioned gradient step. Clients keep their first moment.

    Differs from the paper: the listing of Chen et al. was not available. This is Fed-LAMB's Algorithm 1 without layer norms
    and weight decay. As in the code of Fed-LAMB's authors, round 0 divides by sqrt(v) + eps of the client, because v_hat is
    still eps; `first_round="frozen"` switches that off. Unlike in that code, v starts each round at the server's v_hat (in
    the code each client keeps its v), and nothing is added to the root of v_hat.
    """

    lr: float = hp(1e-3, "eta_l, local step size", above=0, grid=(1e-4, 3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 0.01, 0.03, 0.05, 0.1))
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.999, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "first v_hat", above=0)
    first_round: str = hp("local_v", "denominator of round 0: own v, or the frozen v_hat", choices=("local_v", "frozen"))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, v_hat=torch.full_like(x, self.eps)), Client(m=torch.zeros_like(x))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w, m, v = steps.copy(down.x), steps.copy(mem.m), steps.copy(down.v_hat)
        own = steps.t == 0 and self.first_round == "local_v"
        root = down.v_hat.sqrt()
        for grad in steps:
            g = steps.clip(grad(w))
            m.lerp_(g, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            w.addcdiv_(m, v.sqrt() + self.eps if own else root, value=-self.lr)
        return Up(dx=w - down.x, v=v), Client(m=m)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx), v_hat=torch.maximum(s.v_hat, r.avg(up.v)))
