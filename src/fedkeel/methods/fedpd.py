"""FedPD: a primal-dual method that may skip communication."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.participation import need_everyone


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    lam: Tensor  # [d] dual variable
    w: Tensor  # [d] last local model
    x0: Tensor  # [d] this client's estimate of the global model
    talked: NotNegative  # [1] 1 if x0 was sent, so that the server's mean replaces it; else 0


class Up(NamedTuple):
    dx0: Tensor  # [d] estimate minus global model; not sent in rounds that skip communication


@algorithm(
    "fedpd",
    paper="Zhang et al. 2021, Algorithms 1 and 2",
    sends="x",
    exact=True,
    solves="drift communication",
    family="tracking",
    correction="+ lam_i + (w - x) / eta",
    step="average of w + eta lam",
    tracked="dx0",
)
@dataclass(frozen=True, kw_only=True)
class FedPD(Algorithm):
    """Every client solves its part of an augmented Lagrangian, updates its dual variable and sends w + eta lam.

    Prefer it when all clients take part, local work is long and rounds of communication can be skipped at random. The
    minimiser of the global loss is its fixed point.

    Differs from the authors' MATLAB file, which has x0 + eta lam; their paper and Python code have w + eta lam. The run's K
    takes the place of their 300 local steps.
    """

    lr: float = hp(0.1, "eta_1, local step size", above=0)
    eta: float = hp(1.0, "inverse strength of the quadratic penalty", above=0)
    p_skip: float = hp(0.0, "p, probability that a round skips communication", least=0, below=1)
    start: str = hp("warm", "local steps start at the last local, or at the global model", choices=("warm", "global"))
    allow_partial: bool = hp(False, "allow rounds without some clients, although the method is made for all")

    def plan(self, p: Plan) -> Self:
        need_everyone(self.name, p, self.allow_partial)
        return self

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(lam=torch.zeros_like(x), w=x, x0=x, talked=x.new_ones(1))

    def draw(self, rng: np.random.Generator, ids: Sequence[int]) -> dict[str, np.ndarray]:
        return {"tracks": np.full(len(ids), float(rng.random() >= self.p_skip))}  # one coin for all

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        x0 = torch.where(mem.talked > 0, down.x, mem.x0)
        w = steps.copy(mem.w if self.start == "warm" else x0)
        for grad in steps:
            u = grad(w).add_(mem.lam).add_(w - x0, alpha=1 / self.eta)
            w.sub_(steps.clip(u), alpha=self.lr)
        lam = mem.lam + (w - x0) / self.eta
        x0_new = w + self.eta * lam
        talks = steps.drawn.tracks
        return Up(dx0=talks * (x0_new - down.x)), Client(lam=lam, w=w, x0=x0_new, talked=talks)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx0))  # dx0 is 0 in rounds that skip communication
