"""FedAMS: FedAvg's clients, AMSGrad with a floor on the server."""

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
    v_hat: Tensor  # [d] largest second moment so far, at least eps


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedams",
    paper="Wang et al. 2022, Communication-Efficient Adaptive Federated Learning, Algorithm 1",
    sends="x",
    exact=False,
    family="server-adaptive",
    step="AMSGrad, floor eps",
)
@dataclass(frozen=True, kw_only=True)
class FedAMS(Algorithm):
    """FedAdam whose second moment never decreases and is never below eps, so that no coordinate takes a huge step.

    Prefer it to FedAdam when training is unstable late in a run. Do not confuse it with fed-ams, which runs AMSGrad on the
    clients (some papers call that one FedAMS).

    Differs from the authors' code: no bias correction unless you set `bias_correction`.
    UNCONFIRMED: option "amsgrad" (eps added to the root instead of a floor, v_hat still starting at eps) is assumed from
    the paper's second option; the authors' code does not have it.
    """

    lr: float = hp(0.01, "eta_l, local step size", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-3, "first and smallest v_hat", above=0)
    option: str = hp("max", "denominator: sqrt(v_hat) with v_hat >= eps, or sqrt(v_hat) + eps", choices=("max", "amsgrad"))
    bias_correction: bool = hp(False, "divide the moments by 1 - beta^(t + 1), as the authors' code does")

    def init(self, x: Tensor) -> tuple[Server, None]:
        zero = torch.zeros_like(x)
        return Server(x=x, m=zero, v=zero, v_hat=torch.full_like(x, self.eps)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        m = self.beta1 * s.m + (1 - self.beta1) * dx
        v = self.beta2 * s.v + (1 - self.beta2) * dx**2
        v_hat = torch.maximum(s.v_hat, v)  # at least eps, since it starts there
        first, second = (1 - beta ** (r.t + 1) if self.bias_correction else 1.0 for beta in (self.beta1, self.beta2))
        root = (v_hat / second).sqrt()
        if self.option == "amsgrad":
            root = root + self.eps
        return Server(x=s.x + self.server_lr / first * m / root, m=m, v=v, v_hat=v_hat)
