"""FedSAM: FedAvg with sharpness-aware clients."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.sam import sam_gradient


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "fedsam",
    paper="Qu et al. 2022; Caldarola et al. 2022",
    sends="x",
    exact=False,
    solves="sharpness",
    family="SGD",
    local="SAM",
    gradients=2,
    same=["rho=0 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class FedSAM(Algorithm):
    """Every local step uses the gradient at the worst point within distance rho of the local model, not at the model.

    Prefer it when test accuracy matters more than speed: it looks for flat minima and costs two gradients a step. It helps
    most where clients have few samples and overfit.

    Differs from public codes: nothing is added to the norm of the gradient (they add 1e-16 to 1e-7). Weight decay is part
    of both gradients (there of the second one only, at w).
    UNCONFIRMED: the listing of Qu et al. was not read; the update is that of Caldarola et al.'s code. The papers' rho.
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0)
    rho: float = hp(0.1, "radius of the perturbation", least=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            w.sub_(steps.clip(sam_gradient(grad, w, self.rho)), alpha=self.lr)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
