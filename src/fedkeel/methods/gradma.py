"""GradMA: gradient memory on the workers and on the server."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.gradma import Memory, reduce_memory, server_update, worker_update


class Server(NamedTuple):  # M: the hyper-parameter `memory`
    x: Tensor  # [d] global model
    m: Tensor  # [d] corrected momentum
    D: Tensor  # [M, d] remembered displacements
    gram: Tensor  # [M, M] inner products of their rows
    scale: Tensor  # [M] what each row is to be multiplied by
    ids: Tensor  # [M] the client of each row, -1 if empty
    visits: Tensor  # [M] rounds in which it took part
    since: Tensor  # [M] the round in which it was put in


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x_old: Tensor  # [d] final local model of this client's last round, x^0 before its first


class Up(NamedTuple):  # of one client; `server` gets them stacked, [S, d]
    dx: Tensor  # [d] local minus global model


@algorithm(
    "gradma",
    paper="Luo et al. 2023, GradMA, Algorithms 1 to 4",
    sends="x",
    exact=False,
    solves="memory absence drift",
    family="memory",
    correction="turned to agree with 3 directions",
    step="heavy ball, turned to agree with the memory",
    gradients=3,
    owns="D gram scale",
    same=["memory=0 beta1=0 -> gradma-w"],
)
@dataclass(frozen=True, kw_only=True)
class GradMA(Algorithm):
    """GradMA-W on the clients and GradMA-S on the server. Every local step and every server step is turned, as little as
    possible, until it has no negative inner product with what is remembered.

    Prefer GradMA-S, whose local steps take one gradient instead of three: on CIFAR-10 (LeNet-5, three seeds) GradMA was 4.5
    to 4.9 points below it at Dirichlet 1 and 0.1. At Dirichlet 0.01, with short steps (lr 0.01), GradMA was the best of
    seven methods (results/gradma-cifar10-short).

    Differs from the paper: with beta2 = 0 absent clients are forgotten, as Algorithm 3 prints, while the text (section 6.2)
    says that their latest update is kept. With beta2 > 0 an absent client stays a constraint: only the direction of its row
    counts, not its length. So beta2 acts when the client returns: it weighs its older displacements against the new one.
    Differs from public code: the previous iterate of step 0 is the client's last local model, as listed (the released code
    takes the global model: `old_model="global"`); one projection for the whole model, not one per tensor; clients weigh
    equally, as listed, unless weights="samples" (the code weighs them by their samples).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))
    beta1: float = hp(0.5, "server momentum", least=0, below=1, grid=(0.1, 0.5, 0.9))
    beta2: float = hp(0.5, "decay of the remembered displacements", least=0, below=1, grid=(0.1, 0.5, 0.9))
    memory: int = hp(
        100, "M, remembered clients: at least the cohort, or 0 for none", least=0, grid=(0, 10, 20, 40, 60, 80, 100)
    )
    old_model: str = hp("last_local", "previous iterate of a client's step 0", choices=("last_local", "global"))

    def plan(self, p: Plan) -> Self:
        if 0 < self.memory < p.S:
            raise ValueError(
                f"{self.name}: memory = {self.memory} is not allowed; it must be 0 or at least the cohort, {p.S}"
            )
        return replace(self, memory=min(self.memory, p.N))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x, torch.zeros_like(x), *Memory.empty(x, self.memory)), Client(x_old=x)

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        x_old = mem.x_old if self.old_model == "last_local" else down.x
        w = worker_update(down.x, x_old, steps, self.lr)
        return Up(dx=w - down.x), Client(x_old=w)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m = self.beta1 * s.m + r.avg(up.dx)
        memory = Memory(s.D, s.gram, s.scale, s.ids, s.visits, s.since)
        if self.memory:
            memory, rows = reduce_memory(memory, r.ids.tolist(), r.t)
            memory, m = server_update(memory, m, up.dx, rows, self.beta2)
        return Server(s.x + self.server_lr * m, m, *memory)
