"""FedExP: FedAvg whose server chooses its own step."""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] evaluated model: the mean of the last two iterates
    z: Tensor  # [d] the iterate, where clients start


class Down(NamedTuple):
    z: Tensor  # [d] the iterate


class Up(NamedTuple):
    dz: Tensor  # [d] local model minus z
    square: NotNegative  # [1] squared norm of dz


@algorithm(
    "fedexp",
    paper="Jhunjhunwala et al. 2023, FedExP",
    sends="z",
    exact=False,
    solves="adaptivity communication",
    family="server-adaptive",
    step="extrapolated average",
    same=["eps=1e12 average=false -> fedavg lr=0.01"],
)
@dataclass(frozen=True, kw_only=True)
class FedExP(Algorithm):
    """FedAvg whose server step is longer the more the clients' displacements differ, and at least 1.

    Prefer it when clients differ a lot: their displacements then cancel and FedAvg's mean step is short. You need not tune
    a server step. Near FedAvg's fixed point the step gets long and x jumps. A larger eps bounds the step.

    Differs from the authors' code: eps is added to the squared norm as it is. The code adds S eps, so eps = 0.001 S copies
    its runs. As in that code, eps shrinks with the square of a decaying lr, because displacements do.
    UNCONFIRMED: the paper's formula is taken from two independent implementations.
    """

    lr: float = hp(0.01, "eta_l, local step size", above=0)
    eps: float = hp(1e-3, "added to the squared norm of the mean displacement", above=0)
    average: bool = hp(True, "evaluate the mean of the last two iterates")

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, z=x), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.z)
        for grad in steps:
            grad.descend(w, self.lr)
        dz = w - down.z
        return Up(dz=dz, square=dz.square().sum(-1, keepdim=True)), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dz = r.avg(up.dz)
        step = r.avg(up.square) / (2 * (dz.square().sum() + self.eps))
        z = s.z + step.clamp_min(1.0) * dz
        return Server(x=(z + s.z) / 2 if self.average and r.t > 0 else z, z=z)

    def at(self, t: int, lr_decay: float = 1.0) -> Self:
        decay = lr_decay ** max(t, 0)
        return dataclasses.replace(self, lr=self.lr * decay, eps=self.eps * decay**2)
