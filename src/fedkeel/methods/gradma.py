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


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] corrected momentum
    D: Tensor  # [m, d] remembered displacements
    gram: Tensor  # [m, m] inner products of their rows
    scale: Tensor  # [m] what each row is to be multiplied by
    ids: Tensor  # [m] the client of each row, -1 if empty
    visits: Tensor  # [m] rounds in which it took part
    since: Tensor  # [m] the round in which it was put in


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x_old: Tensor  # [d] final local model of this client's last round, x^0 before its first


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "gradma",
    paper="Luo et al. 2023, GradMA, Algorithms 1 to 4",
    sends="x",
    exact=False,
    family="memory",
    correction="projection on 3 directions",
    step="heavy ball, projection on the memory",
    gradients=3,
    owns="D gram scale",
    same=["memory=0 beta1=0 -> gradma-w"],
)
@dataclass(frozen=True, kw_only=True)
class GradMA(Algorithm):
    """GradMA-W on the clients and GradMA-S on the server: neither a step nor a round works against the memory.

    Prefer it under strong label skew and small cohorts when three gradients per local step are affordable; GradMA-S alone
    brings most of the gain in its paper.

    Differs from the paper: with beta2 = 0 absent clients are forgotten, as Algorithm 3 prints, while the text (section 6.2)
    says that their latest update is kept. With beta2 > 0, decay alone changes nothing, because only directions count. beta2
    says how much of a client's older displacements remains when its next one is added.
    Differs from public code: the previous iterate of step 0 is the client's last local model, as listed (the released code
    takes the global model: `old_model="global"`); one projection for the whole model, not one per tensor; clients weigh
    equally, as listed, unless weights="samples" (the code weighs them by their samples).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))
    beta1: float = hp(0.5, "server momentum", least=0, below=1, grid=(0.1, 0.5, 0.9))
    beta2: float = hp(0.5, "decay of the remembered displacements", least=0, below=1, grid=(0.1, 0.5, 0.9))
    memory: int = hp(
        100, "m, remembered clients: at least the cohort, or 0 for none", least=0, grid=(0, 10, 20, 40, 60, 80, 100)
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
