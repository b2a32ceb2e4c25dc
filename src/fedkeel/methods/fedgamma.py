"""FedGAMMA: SCAFFOLD with sharpness-aware clients."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.sam import sam_gradient
from fedkeel.rules.tracking import track


class Server(NamedTuple):
    x: Tensor  # [d] global model
    c: Tensor  # [d] control variate: the mean of all clients' c


class Client(NamedTuple):
    c: Tensor  # [d] this client's mean sharpness-aware gradient of its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "fedgamma",
    paper="Dai et al. 2023, FedGAMMA",
    sends="x c",
    exact=False,
    solves="sharpness drift",
    family="tracking",
    local="SAM",
    correction="+ c - c_i",
    gradients=2,
    same=["rho=0 -> scaffold"],
)
@dataclass(frozen=True, kw_only=True)
class FedGAMMA(Algorithm):
    """SCAFFOLD on sharpness-aware gradients: control variates c and c_i are means of gradients at perturbed points.

    Prefer it in SCAFFOLD's setting, clients that differ, take part often and can keep a vector, when the model overfits. It
    costs twice SCAFFOLD's gradients. Its fixed point does not depend on K, but for rho > 0 it is not the minimiser.

    Differs from public code: c_i is the mean of the gradients, not computed from the displacement. Both are the same
    number without clipping; in a run with `clip` the displacement is used, as there.
    UNCONFIRMED: the paper was not read; two public implementations agree. The paper's rho.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    rho: float = hp(0.1, "radius of the perturbation", least=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, c=torch.zeros_like(x)), Client(c=torch.zeros_like(x))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        drift = down.c - mem.c
        c_new = steps.zeros()
        for grad in steps:
            w.sub_(track(c_new, sam_gradient(grad, w, self.rho), drift, steps), alpha=self.lr)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx), c=s.c + r.share(up.dc))
