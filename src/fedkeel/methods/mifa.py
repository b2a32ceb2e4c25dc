"""MIFA: the average of the latest updates of all clients, also of absent ones."""

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


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    u: Tensor  # [d] displacement of this client's last round


class Up(NamedTuple):
    du: Tensor  # [d] change of the client's displacement


@algorithm(
    "mifa",
    paper="Gu et al. 2021; Luo et al. 2023 (GradMA), Algorithm 6 with beta1 = 0",
    sends="x",
    exact=False,
    solves="absence memory",
    family="memory",
    step="average of remembered dx",
)
@dataclass(frozen=True, kw_only=True)
class MIFA(Algorithm):
    """FedAvg whose server averages the latest displacements of all clients. Absent clients count with their last one.

    Prefer it when some clients are away for long or in a pattern, which would bias FedAvg. Remembered displacements are
    stale, so small steps suit it. A client counts as 0 until its first round.

    Differs from the original: displacements are kept as they are, as in the GradMA paper, not divided by their learning
    rate, and the first rounds do not wait until every client was seen. Clients hold the memory, not the server.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, D=torch.zeros_like(x)), Client(u=torch.zeros_like(x))

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        u = w - down.x
        return Up(du=u - mem.u), Client(u=u)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        D = s.D + r.share(up.du)
        return Server(x=s.x + self.server_lr * D, D=D)
