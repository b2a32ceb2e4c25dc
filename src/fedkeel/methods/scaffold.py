"""SCAFFOLD: control variates against client drift."""

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
    c: Tensor  # [d] this client's control variate from its last round (see `option`); 0 before its first


class Up(NamedTuple):  # of one client; `server` gets them stacked, [S, d]
    dx: Tensor  # [d] local minus global model
    dc: Tensor  # [d] change of the client's control variate


@algorithm(
    "scaffold",
    paper="Karimireddy et al. 2020, Algorithm 1, options I and II",
    sends="x c",
    exact=True,
    solves="drift",
    family="tracking",
    correction="+ c - c_i",
)
@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """Each client keeps its mean gradient c_i, the server keeps the mean c of all c_i, and each step adds c - c_i.

    Prefer it when clients differ, can keep one vector between rounds and take part often enough to keep c_i fresh. Its
    fixed point is the minimiser of the global loss for any number of local steps. If clients take part rarely, their c_i are
    old and make it slow.

    Differs from the paper: option II is computed as the mean of the local gradients, not from the displacement. Both are
    the same number, but the displacement loses digits in float32. In a run with `clip`, a step clips
    g + c - c_i, and c_i is the mean of the clipped steps minus c - c_i. That is the paper's displacement again. Steps are at
    most `clip` long, so c_i stays bounded.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)
    option: str = hp("II", "new c_i: I = full local gradient at x, II = mean gradient of the round", choices=("I", "II"))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x, c=torch.zeros_like(x)), Client(c=torch.zeros_like(x))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        correction = down.c - mem.c
        c_new = steps.zeros()
        for grad in steps:
            w.sub_(track(c_new, grad(w), correction, steps), alpha=self.lr)
        if self.option == "I":
            c_new = steps.full_grad(down.x)
        return Up(dx=w - down.x, dc=c_new - mem.c), Client(c=c_new)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(
            x=s.x + self.server_lr * r.avg(up.dx), c=s.c + r.share(up.dc)
        )  # share: over all N, so c stays the mean of all c_i
