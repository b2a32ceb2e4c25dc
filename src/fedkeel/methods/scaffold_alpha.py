"""SCAFFOLD-alpha: SCAFFOLD with a part of its correction."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.tracking import track


class Server(NamedTuple):
    x: Tensor  # [d] global model
    c: Tensor  # [d] control variate: the mean of all clients' c


class Client(NamedTuple):
    c: Tensor  # [d] this client's mean gradient of its last round


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "scaffold-alpha",
    paper="Sun et al. 2023 (FedLADA), equation 26",
    sends="x c",
    exact=False,
    solves="drift",
    family="tracking",
    correction="+ alpha (c - c_i)",
    same=["alpha=0 -> fedavg", "alpha=1 -> scaffold"],
)
@dataclass(frozen=True, kw_only=True)
class ScaffoldAlpha(Algorithm):
    """SCAFFOLD with its correction multiplied by alpha: 0 is FedAvg's path, 1 is SCAFFOLD, the rest in between.

    The FedLADA paper uses it to study how much correction helps (its Table 10). For practical use prefer SCAFFOLD.

    Differs from the paper: equation 26 corrects by the average of the last round's participants; we use SCAFFOLD's
    running c over all clients, because the paper itself calls alpha = 1 SCAFFOLD. The client's part is the uncorrected mean
    gradient of the last round in which it took part, which need not be round t - 1.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    alpha: float = hp(0.5, "weight of the correction", least=0, grid=(0, 0.25, 0.5, 0.75, 1, 1.25, 1.5))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, c=torch.zeros_like(x)), Client(c=torch.zeros_like(x))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        drift = self.alpha * (down.c - mem.c)
        c_new = steps.zeros()
        for grad in steps:
            w.sub_(track(c_new, grad(w), drift, steps), alpha=self.lr)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx), c=s.c + r.share(up.dc))
