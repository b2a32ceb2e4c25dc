"""FedMLB: local blocks completed by frozen global ones."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.loss_terms import branches


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedmlb",
    paper="Kim et al. 2022, Algorithm 1",
    sends="x",
    exact=False,
    solves="drift",
    family="representation",
    correction="branch losses",
    needs="blocks",
    same=["lam2=0 lam3=0 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class FedMLB(Algorithm):
    """Local SGD whose early blocks must also work with the frozen late blocks of the global model.

    Prefer it for deep networks under label skew: it keeps intermediate features compatible between clients. The model has
    to declare its blocks (core/features.py); a step costs a forward and backward pass per branch.

    Differs from the authors' code: clients weigh equally unless weights="samples" (the code weighs them by their samples).
    The direction of the divergence (branch against main path, no tau^2, no detach) is that of the code.
    UNCONFIRMED: lam1 to lam3 are the defaults of the code; the values tuned in the paper are not known.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    lam1: float = hp(1.0, "weight of the main path's loss", least=0)
    lam2: float = hp(1.0, "weight of the branches' loss", least=0)
    lam3: float = hp(1.0, "weight of the divergence of the branches from the main path", least=0)
    temperature: float = hp(1.0, "tau of the divergence", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            # `grad.plus` already counts the loss of the main path once, so the term adds lam1 - 1 of it.
            u = grad.plus(branches(self.lam1 - 1, self.lam2, self.lam3, self.temperature), w, down.x)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
