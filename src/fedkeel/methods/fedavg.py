"""FedAvg: local SGD, averaged."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm("fedavg", paper="McMahan et al. 2017, Algorithm 1", sends="x", exact=False, family="SGD", solves="communication")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """The baseline: every participant takes K steps of SGD from the global model, and the server averages the results.

    Prefer it when clients are alike or K is small. Where their data differ and K > 1, it stops at a point that depends
    on the learning rate, not at the minimiser of the global loss.

    Differs from the paper: clients weigh equally unless weights="samples" (the paper weighs them by their samples, n_k).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
