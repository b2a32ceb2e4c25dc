"""Write a method of your own, check it by the laws that all methods obey, and train with it."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

import fedkeel as fk
from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Down(NamedTuple):
    x: Tensor  # [d] what a client receives


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm("fedpull", paper="this file", sends="x", exact=False, solves="drift", family="SGD")
@dataclass(frozen=True, kw_only=True)
class FedPull(Algorithm):
    """FedAvg whose clients are pulled back to the global model after every step."""

    lr: float = hp(0.1, "local step size", above=0)
    pull: float = hp(0.1, "share of the way back after a step", least=0, below=1)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
            w.lerp_(down.x, self.pull)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx))


if __name__ == "__main__":
    # On the command line: fedkeel check own_method:FedPull
    for law, wrong in fk.check(FedPull).items():
        print("ok" if wrong is None else f"BROKEN ({wrong})", law)

    study = fk.compare("mlp", "digits", ["fedavg", FedPull(pull=0.05)], seeds=2, rounds=10, progress=False)
    print(study)
