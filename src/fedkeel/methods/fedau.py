"""FedAU: FedAvg that weighs a client by how rarely it takes part."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    last: Tensor  # [1] this client's last round, -1 before the first
    total: NotNegative  # [1] rounds in the intervals between its participations
    intervals: NotNegative  # [1] number of these intervals


class Up(NamedTuple):
    u: Tensor  # [d] displacement times the client's mean interval


@algorithm(
    "fedau",
    paper="Wang and Ji 2024, Algorithm 2",
    sends="x",
    exact=False,
    solves="absence",
    family="SGD",
    correction="times the mean interval",
    step="sum / N",
)
@dataclass(frozen=True, kw_only=True)
class FedAU(Algorithm):
    """Each client multiplies its displacement by the mean number of rounds between its participations so far.

    Prefer it when clients are available with unknown, different frequencies and cannot keep a vector. Three numbers at each
    client remove most of FedAvg's bias towards those who take part often.

    Differs from the authors' code: a client updates its intervals when it takes part, not in every round; the weights are
    the same. An absence longer than `cutoff` counts as several intervals of that length. A client that fails keeps its
    numbers, as if it had been absent.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)
    cutoff: int = hp(50, "K of the paper, longest interval that counts as one", least=1)

    def init(self, x: Tensor) -> tuple[Server, Client]:
        zero = x.new_zeros(1)
        return Server(x=x), Client(last=zero - 1, total=zero, intervals=zero)

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        absent = steps.t - mem.last - 1
        whole = torch.floor(absent / self.cutoff)  # intervals of full length in this absence
        total, intervals = mem.total + whole * self.cutoff, mem.intervals + whole
        weight = torch.where(intervals > 0, total / intervals.clamp_min(1), 1.0)  # from participations before this one
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        rest = absent - whole * self.cutoff
        new = Client(last=torch.full_like(mem.last, steps.t), total=total + rest + 1, intervals=intervals + 1)
        return Up(u=weight * (w - down.x)), new

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.share(up.u))
