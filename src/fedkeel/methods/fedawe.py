"""FedAWE: clients make up for the rounds that they missed, and only those who are there receive the new model."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x: Tensor  # [d] global model after this client's last round
    last: Tensor  # [1] that round, -1 before the first


class Survey(NamedTuple):
    dx: Tensor  # [d] where the client would put the model, minus global model


class Up(NamedTuple):
    heard: Tensor  # [1] always 1: the client has the new model


@algorithm(
    "fedawe",
    paper="Xiang et al. 2024, FedAWE",
    sends="x",
    exact=False,
    solves="absence",
    family="SGD",
    correction="times the rounds since the last one",
    step="mean of the participants' models",
)
@dataclass(frozen=True, kw_only=True)
class FedAWE(Algorithm):
    """Each client works on the model of its own last round, multiplies its displacement by the rounds since then, and the
    server averages the models that result. Only participants receive the average.

    Prefer it when clients come and go in a way that nobody knows and that changes over time, such as by day and night. It
    counts a client that is rarely there as much as others; choose a smaller `lr` than for FedAvg, because long absences make
    long steps.

    Differs from the paper: a round has two exchanges. In the first one clients train, in the second one they receive the new
    model. They send the difference to the present global model instead of a model.
    Differs from the authors' code: it shortens the mean of the multiplied displacements to norm 0.5, and its lr decays as
    1 / sqrt(1 + t / 10).
    UNCONFIRMED: the listing was not read; the update is that of the authors' code and of the abstract.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    server_lr: float = hp(1.0, "eta_g, factor of the displacement", above=0)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(x=x, last=x.new_full((1,), -1))

    def surveys(self, t: int = 0) -> bool:
        return True

    def survey(self, down: Server, mem: Client, steps: Steps) -> tuple[Survey, Client]:
        w = steps.copy(mem.x)
        for grad in steps:
            grad.descend(w, self.lr)
        missed = steps.t - mem.last  # 1 if it took part in the round before
        return Survey(dx=mem.x - down.x + self.server_lr * missed * (w - mem.x)), mem

    def survey_server(self, s: Server, up: Survey, r: Round) -> Server:
        return Server(x=s.x + r.avg(up.dx))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        new = Client(x=steps.copy(down.x), last=mem.last.new_full(mem.last.shape, steps.t))
        return Up(heard=mem.last.new_ones(mem.last.shape)), new

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return s
