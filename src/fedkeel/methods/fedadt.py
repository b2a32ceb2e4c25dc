"""FedADT: local Adam with a derivative term."""

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


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedadt",
    paper="Gao et al. 2023, FedADT; only the abstract was available",
    sends="x",
    exact=False,
    family="client-adaptive",
    local="Adam with derivative",
)
@dataclass(frozen=True, kw_only=True)
class FedADT(Algorithm):
    """Local Adam whose numerator also holds a moving average of the gradient's changes, to react to them early.

    It is here because the papers of this library compare with it. For practical use prefer LocalAdam or FAdamGT. Clients
    keep nothing: all moments start at 0 in every round.

    UNCONFIRMED: the whole update. The abstract speaks of an adaptive local step with a moving average of gradient
    differences; the formula and all constants are assumed, so keep it out of comparisons.
    """

    lr: float = hp(1e-3, "eta_l, local step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    beta_d: float = hp(0.9, "decay of the mean gradient difference", least=0, below=1)
    lam_d: float = hp(0.1, "lambda_d, weight of the derivative term", least=0)
    eps: float = hp(1e-8, "added to the root of v", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        m, v, D = steps.zeros(), steps.zeros(), steps.zeros()
        before, root = steps.zeros(), steps.zeros()
        for k, grad in enumerate(steps):
            g = steps.clip(grad(w))
            m.lerp_(g, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            if k > 0:  # the first gradient has no predecessor, so no difference
                D.lerp_(torch.sub(g, before, out=before), 1 - self.beta_d)
            before.copy_(g)
            w.addcdiv_(torch.add(m, D, alpha=self.lam_d, out=g), torch.sqrt(v, out=root).add_(self.eps), value=-self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
