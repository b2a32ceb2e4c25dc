"""Mime-LAMB: local LAMB with a second moment from full gradients at the global model."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.lamb import layer_unit


class Server(NamedTuple):
    x: Tensor  # [d] global model
    v_hat: Tensor  # [d] largest second moment so far
    v: Tensor  # [d] second moment of the mean gradient at x


class Down(NamedTuple):
    x: Tensor  # [d] global model
    v_hat: Tensor  # [d] largest second moment so far


class Client(NamedTuple):
    m: Tensor  # [d] first moment after this client's last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    g: Tensor  # [d] full local gradient at the broadcast model


@algorithm(
    "mime-lamb",
    paper="Karimi et al. 2023, Fed-LAMB, Algorithm 1 of the main text, the steps of Mime-LAMB",
    sends="x v_hat",
    exact=False,
    family="client-adaptive",
    local="LAMB, v_hat frozen",
    correction="layer norms",
    step="average, v from full gradients",
)
@dataclass(frozen=True, kw_only=True)
class MimeLAMB(Algorithm):
    """Fed-LAMB whose server computes the second moment from the participants' full gradients at the global model.

    Prefer it to Fed-LAMB when local iterates wander so far that their second moments mislead; it costs a pass over all
    local data per round.

    Differs from the paper: trust ratio 1 for layers that are all zero, as in Fed-LAMB.
    Differs from the authors' code: the gradient is that of the participants, as listed (the code takes all training data
    and squares v), and clients have no second moment of their own (the code divides by one in round 0).
    """

    lr: float = hp(
        0.01, "eta, local step relative to a layer's norm", above=0,
        grid=(0.001, 0.003, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 0.5),
    )  # fmt: skip
    lam: float = hp(0.01, "lambda, decoupled weight decay inside the normalised step", least=0, grid=(0, 0.01, 0.1))
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.999, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "first v_hat", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        server = Server(x=x, v_hat=torch.full_like(x, self.eps), v=torch.zeros_like(x))
        return server, Client(m=torch.zeros_like(x))

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w, m = steps.copy(down.x), steps.copy(mem.m)
        root = down.v_hat.sqrt()
        for grad in steps:
            g = steps.clip(grad(w))
            m.lerp_(g, 1 - self.beta1)
            u = torch.div(m, root, out=g).add_(w, alpha=self.lam)  # psi + lambda w
            w.sub_(layer_unit(u, w, steps.layers), alpha=self.lr)
        return Up(dx=w - down.x, g=steps.full_grad(down.x)), Client(m=m)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        v = self.beta2 * s.v + (1 - self.beta2) * r.avg(up.g) ** 2
        return Server(x=s.x + r.avg(up.dx), v_hat=torch.maximum(s.v_hat, v), v=v)
