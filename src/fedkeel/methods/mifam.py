"""MIFAM: MIFA with heavy-ball momentum on the server."""

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
    D: Tensor  # [d] the mean of all clients' u
    m: Tensor  # [d] momentum of D


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    u: Tensor  # [d] displacement of this client's last round


class Up(NamedTuple):
    du: Tensor  # [d] change of the client's displacement


@algorithm(
    "mifam",
    paper="Luo et al. 2023 (GradMA), Algorithm 6",
    sends="x",
    exact=False,
    solves="absence memory",
    family="memory",
    step="heavy ball on remembered dx",
    same=["beta1=0 -> mifa"],
)
@dataclass(frozen=True, kw_only=True)
class MIFAM(Algorithm):
    """MIFA whose server keeps a momentum of the remembered mean displacement and moves along it.

    Prefer it to MIFA when progress is slow and steady. Stale displacements and momentum both delay the reaction, so with
    rare participation take a smaller beta1 or server_lr than for FedAvgM.

    Differs from the original MIFA: displacements are kept as they are, not divided by their learning rate, and the first
    rounds do not wait until every client was seen. Clients hold the memory, not the server.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    beta1: float = hp(0.5, "server momentum", least=0, below=1, grid=(0.1, 0.5, 0.9))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, D=torch.zeros_like(x), m=torch.zeros_like(x)), Client(u=torch.zeros_like(x))

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        u = w - down.x
        return Up(du=u - mem.u), Client(u=u)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        D = s.D + r.share(up.du)
        m = self.beta1 * s.m + D
        return Server(x=s.x + self.server_lr * m, D=D, m=m)
