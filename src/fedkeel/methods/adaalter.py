"""Local AdaAlter: local AdaGrad whose denominator changes only between rounds."""

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
    v: Tensor  # [d] sum of squared gradients, the mean of the clients'


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    v: NotNegative  # [d] the server's sum and this client's squared gradients


@algorithm(
    "adaalter",
    paper="Xie et al. 2019, Local AdaAlter, Algorithm 4; constants from the released code",
    sends="x v",
    exact=False,
    solves="adaptivity communication",
    family="client-adaptive",
    local="AdaGrad, v frozen",
    step="average x, v",
)
@dataclass(frozen=True, kw_only=True)
class AdaAlter(Algorithm):
    """Clients run AdaGrad with the server's sum of squared gradients, frozen in the round, and collect squares for the next.

    Prefer it to local Adam where clients differ: all clients divide by the same vector, so their average is still a
    preconditioned gradient step, and clients keep nothing. All steps shrink over the rounds, as in AdaGrad.

    Differs from the released code: no warm-up of the learning rate.
    UNCONFIRMED: the paper's listing seems to have sqrt(v + k eps^2), with k the step in the round. `eps_mode="k_eps2"`
    writes that from memory. The default is sqrt(v + eps), as in the code.
    """

    lr: float = hp(0.5, "eta, local step size", above=0)
    eps: float = hp(1.0, "added to v under the root", above=0)
    eps_mode: str = hp("const", "what is added to v: eps, or k eps^2 in step k = 1..K", choices=("const", "k_eps2"))
    v0: float = hp(0.0, "initial sum of squared gradients", least=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, v=torch.full_like(x, self.v0)), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w, v = steps.copy(down.x), steps.copy(down.v)
        root = (down.v + self.eps).sqrt()
        for k, grad in enumerate(steps, start=1):
            if self.eps_mode == "k_eps2":
                root = (down.v + k * self.eps**2).sqrt()
            g = steps.clip(grad(w))
            v.addcmul_(g, g)
            w.addcdiv_(g, root, value=-self.lr)
        return Up(dx=w - down.x, v=v), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx), v=r.avg(up.v))
