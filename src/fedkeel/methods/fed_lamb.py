"""Fed-LAMB: local LAMB, layer by layer, with one preconditioner for all clients of a round."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.lamb import layer_unit


class Server(NamedTuple):
    x: Tensor  # [d] global model
    v_hat: Tensor  # [d] largest mean second moment so far


class Client(NamedTuple):
    m: Tensor  # [d] first moment after this client's last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    v: NotNegative  # [d] second moment after the local steps


@algorithm(
    "fed-lamb",
    paper="Karimi et al. 2023, Fed-LAMB, Algorithm 1 of the main text, the steps of Fed-LAMB",
    sends="x v_hat",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="LAMB, v_hat frozen",
    correction="layer norms",
    step="average, max of v",
)
@dataclass(frozen=True, kw_only=True)
class FedLAMB(Algorithm):
    """Fed-AMS whose step is normalised layer by layer: every layer moves by lr times its own norm.

    Prefer it for deep networks and large batches: one learning rate serves layers of very different scale, and no client
    can move a layer further than another. Clients keep their first moment.

    Differs from the paper: a layer that is all zero (new biases) has trust ratio 1; otherwise it would stay zero for ever.
    v is updated from its value one step before. (The listing's index points to the round before, which must be a misprint.)
    Differs from the authors' code: v starts each round at the server's v_hat, as listed (in the code each client keeps its
    v), and nothing is added to the root of v_hat. In round 0 that code divides by sqrt(v) + eps of the client, because
    v_hat is still eps; `first_round="local_v"` does the same.
    """

    lr: float = hp(
        0.01, "eta, local step relative to a layer's norm", above=0,
        grid=(0.001, 0.003, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 0.5),
    )  # fmt: skip
    lam: float = hp(0.01, "lambda, decoupled weight decay inside the normalised step", least=0, grid=(0, 0.01, 0.1))
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.999, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "first v_hat", above=0)
    first_round: str = hp("frozen", "denominator of round 0: the frozen v_hat, or own v", choices=("frozen", "local_v"))

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
            u = torch.div(m, v.sqrt() + self.eps if own else root, out=g).add_(w, alpha=self.lam)  # psi + lambda w
            w.sub_(layer_unit(u, w, steps.layers), alpha=self.lr)
        return Up(dx=w - down.x, v=v), Client(m=m)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx), v_hat=torch.maximum(s.v_hat, r.avg(up.v)))
