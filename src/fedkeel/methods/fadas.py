"""FADAS: AMSGrad on the server of an asynchronous run, with a shorter step when uploads are old."""

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
    v_hat: Tensor  # [d] largest second moment so far


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model, both of the client's own start


@algorithm(
    "fadas",
    paper="Wang et al. 2024, FADAS, Algorithms 1 and 2",
    sends="x",
    exact=False,
    solves="adaptivity absence",
    family="server-adaptive",
    step="AMSGrad, shorter for old uploads",
    same=["v0=0.001 eps=0.001 lr=0.01 server_lr=1 -> fedams option=amsgrad"],
)
@dataclass(frozen=True, kw_only=True)
class FADAS(Algorithm):
    """FedAMS for clients that do not wait for each other: a server step with an upload older than tau_c steps is shorter.

    Prefer it in asynchronous runs (`clock=..., buffer=B, staleness="constant"`) when an adaptive server helps and some
    clients are much slower than others. In ordinary rounds nothing is old, and it is AMSGrad on the server: take FedAMS.

    Differs from the authors' code: no bias correction unless you set `bias_correction`. Their code lets most clients start
    from the model before the last server step and measures their displacement from the one after it; here a displacement is
    measured from its own start. `staleness` weighs single uploads in addition, so set it to "constant" for the paper's mean.
    UNCONFIRMED: a transcription of the listing cuts the step to min(server_lr, 1 / delay) (`cut="cap"`); the authors' code
    divides it by the delay (`cut="divide"`).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    server_lr: float = hp(1e-3, "eta, server step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "added to the root of v_hat", above=0)
    v0: float = hp(0.0, "first v_hat", least=0)
    tau_c: int = hp(1, "server steps that an upload may be old before the step is cut", least=0)
    cut: str = hp("divide", "cut step: server_lr / delay, or at most 1 / delay", choices=("divide", "cap"))
    bias_correction: bool = hp(False, "divide the moments by 1 - beta^(t + 1), as the authors' code does")

    def init(self, x: Tensor) -> tuple[Server, None]:
        zero = torch.zeros_like(x)
        return Server(x=x, m=zero, v=zero, v_hat=torch.full_like(x, self.v0)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        m = self.beta1 * s.m + (1 - self.beta1) * dx
        v = self.beta2 * s.v + (1 - self.beta2) * dx**2
        v_hat = torch.maximum(s.v_hat, v)
        first, second = (1 - beta ** (r.t + 1) if self.bias_correction else 1.0 for beta in (self.beta1, self.beta2))
        step = self.step_for(r.delay.max()) / first * m / ((v_hat / second).sqrt() + self.eps)
        return Server(x=s.x + step, m=m, v=v, v_hat=v_hat)

    def step_for(self, delay: Tensor) -> Tensor:
        """The server's step size if the oldest upload of the buffer is this many server steps old."""
        old = delay.clamp_min(1)
        cut = self.server_lr / old if self.cut == "divide" else (1 / old).clamp_max(self.server_lr)
        return torch.where(delay > self.tau_c, cut, self.server_lr)
