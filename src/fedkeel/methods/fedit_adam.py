"""FedIT-Adam: local Adam on the LoRA parameters of a frozen model."""

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
    x: Tensor  # [d] global LoRA matrices and classification head


class Client(NamedTuple):
    v: NotNegative  # [d] second moment after this client's last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global


@algorithm(
    "fedit-adam",
    paper="baseline of Parameter Tracking in Federated Learning with Adaptive Optimization, section 6.3",
    sends="x",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="AMSGrad",
    same=["lr=0.001 server_lr=1 -> local-adam"],
)
@dataclass(frozen=True, kw_only=True)
class FedITAdam(Algorithm):
    """Clients fine-tune low-rank adapters (LoRA) of a shared frozen model with AMSGrad; the server averages the adapters.

    The baseline for language models: with GPT-2, 1.9 % of the weights travel. The model decides which parameters are
    trained (`--model hf:NAME`). A method sees one vector, so every other method can train adapters, too. Prefer
    FedIT-AdamGT where clients differ.

    Differs from the paper: it only says "FedIT with Adam"; this is its Algorithm 1 with the tracking switched off. The two
    factors of an adapter are averaged separately, as FedIT does, although the mean of the products is another matrix.
    Default step sizes: those for 20 Newsgroups.
    """

    lr: float = hp(5e-3, "eta_l, local step size", above=0, grid=(5e-3, 1e-3, 1e-4, 3e-5))
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "added to the root of v_hat", above=0)
    server_lr: float = hp(0.1, "eta_g, server step size", above=0, grid=(0.1, 0.3))

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
