"""LocalAdam, shared moments: local AMSGrad from an averaged second moment."""

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
    x: Tensor  # [d] global model
    v: Tensor  # [d] mean of the clients' v_hat


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    v_hat: NotNegative  # [d] largest second moment


@algorithm(
    "local-adam-shared",
    paper="Sun et al. 2023 (FedLADA), Algorithm 2",
    sends="x v",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="AMSGrad",
    step="average x, v_hat",
)
@dataclass(frozen=True, kw_only=True)
class LocalAdamShared(Algorithm):
    """Clients run AMSGrad from the global model and from the mean of all clients' second moments.

    The baseline that FedLADA amends (FedLADA with alpha = 1). Clients keep nothing, but v travels both ways.

    Differs from the paper: Algorithm 2 sends no second moment. Here v_hat is averaged and sent back as in FedLADA, since
    Table 11 charges LocalAdam for two vectors, and FedLADA at alpha = 1 (Table 5) is as accurate as LocalAdam in Table 3.
    Also from Algorithm 3: beta1 and beta2 are weights of the old values (Algorithm 2 has them on the new ones). The mapping
    h_t, which Algorithm 2 leaves open, is the maximum so far, with the new v. A round starts with m = 0 and v = v_hat = the
    server's v.
    """

    lr: float = hp(1e-3, "eta_l, local step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-8, "eps_v: v starts at its square", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, v=torch.full_like(x, self.eps**2)), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        moments = Adam.start(steps, v=down.v, beta1=self.beta1, beta2=self.beta2)
        for grad in steps:
            moments.descend(w, steps.clip(grad(w)), self.lr)
        return Up(dx=w - down.x, v_hat=moments.v_hat), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx), v=r.avg(up.v_hat))
