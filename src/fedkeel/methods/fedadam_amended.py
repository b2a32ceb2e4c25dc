"""FedAdam(*): FedAdam whose local steps are amended by the last mean direction."""

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
    g: Tensor  # [d] mean direction of the last round
    m: Tensor  # [d] first moment of the mean displacement
    v: Tensor  # [d] second moment of it


class Down(NamedTuple):
    x: Tensor  # [d] global model
    g: Tensor  # [d] mean direction of the last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedadam-amended",
    paper="Sun et al. 2023 (FedLADA), section 5, Table 3 and Figure 5",
    sends="x g",
    exact=False,
    family="server-adaptive",
    correction="alpha g + (1 - alpha) mean direction",
    step="Adam",
    same=["alpha=1 -> fedadam"],
)
@dataclass(frozen=True, kw_only=True)
class FedAdamAmended(Algorithm):
    """FedCM's clients and FedAdam's server: local steps mix the gradient (alpha) with the last round's mean direction.

    The FedLADA paper uses it to test whether the amendment also helps an adaptive server, and finds that it does not. For
    practical use prefer FedAdam, FedCM or FedLADA. With alpha = 1 it is FedAdam.

    Differs from the paper, which only describes it in words: the amendment is the mean local direction dx / (lr K), as in
    FedCM, and not the server's Adam step; beta is the weight of the old value and there is no bias correction.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    alpha: float = hp(0.5, "weight of the client's own gradient; the paper's Figure 5b has 0.1", least=0, most=1)
    server_lr: float = hp(0.01, "eta_g, server step size", above=0, grid=(0.0001, 0.001, 0.01, 0.1))
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    tau: float = hp(1e-3, "added to the root of v", least=0)
    v0: float | None = hp(None, "initial second moment; None: tau^2", least=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        v0 = self.tau**2 if self.v0 is None else self.v0
        return Server(x=x, g=torch.zeros_like(x), m=torch.zeros_like(x), v=torch.full_like(x, v0)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            u = grad(w).mul_(self.alpha).add_(down.g, alpha=1 - self.alpha)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        m = self.beta1 * s.m + (1 - self.beta1) * dx
        v = self.beta2 * s.v + (1 - self.beta2) * dx**2
        x = s.x + self.server_lr * m / (v.sqrt() + self.tau)
        return Server(x=x, g=dx / (-self.lr * r.K_mean), m=m, v=v)
