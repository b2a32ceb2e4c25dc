"""FedBN: FedAvg whose batch-normalisation layers stay with the clients."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model, without its batch-normalisation layers


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedbn",
    paper="Li et al. 2021, Algorithm 1",
    sends="x",
    exact=False,
    family="SGD",
    correction="normalisation kept local",
    private=True,
)
@dataclass(frozen=True, kw_only=True)
class FedBN(Algorithm):
    """FedAvg that neither sends nor averages batch-normalisation layers: every client keeps and trains its own.

    Prefer it when clients see the same labels in inputs of another kind (other scanners, other cameras). A model without
    such layers makes it FedAvg. The engine keeps the private layers (`private=True`), and `grad.descend` trains them too.

    Differs from the paper: there is no global model to test. `test_accuracy` uses the shared layers with the averaged
    normalisation of the last round. `client_accuracy` is the mean over its participants, each with its own layers.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
