"""GradMA-W: local SGD whose directions never work against the client's own memory."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.gradma import worker_update


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x_old: Tensor  # [d] final local model of this client's last round, x^0 before its first


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "gradma-w",
    paper="Luo et al. 2023, GradMA, Algorithms 2 and 7",
    sends="x",
    exact=False,
    solves="memory drift",
    family="memory",
    correction="turned to agree with 3 directions",
    gradients=3,
)
@dataclass(frozen=True, kw_only=True)
class GradMAW(Algorithm):
    """Local SGD whose every direction is projected so that it agrees with three others on the same batch.

    These are the gradients at the previous iterate and at the global model, and the displacement so far. So the client does
    not undo what it has learnt. It takes three gradients per step and was level with FedAvg on CIFAR-10 (LeNet-5, three
    seeds; results/gradma-cifar10). So prefer GradMA-S.

    Differs from public code: the previous iterate of step 0 is the client's last local model, as listed (the released code
    of the full GradMA takes the global model); one projection for the whole model, not one per tensor; clients weigh
    equally, as listed, unless weights="samples" (the code weighs them by their samples).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))
    old_model: str = hp("last_local", "previous iterate of step 0", choices=("last_local", "global"))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(x_old=x)

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        x_old = mem.x_old if self.old_model == "last_local" else down.x
        w = worker_update(down.x, x_old, steps, self.lr)
        return Up(dx=w - down.x), Client(x_old=w)

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
