"""MimeLite: clients mimic a central optimiser, with its statistics frozen."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp, planned
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.mime import BASES, Base


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] first moment of the mean gradient at x; empty for base "sgd"
    v: Tensor  # [d] second moment of it; empty unless the base is "adam"


class Survey(NamedTuple):
    g: Tensor  # [d] full local gradient at the global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    g: Tensor  # [d] full local gradient at the global model; empty for base "sgd"


@algorithm(
    "mimelite",
    paper="Karimireddy et al. 2020, Mime, Algorithm 1",
    sends="x m v",
    exact=False,
    family="momentum",
    local="SGD, momentum or Adam, frozen",
    same=["base=sgd -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class MimeLite(Algorithm):
    """Local steps of a base optimiser whose statistics the server makes from full gradients at the global model.

    Prefer it to Mime when a round may have only one exchange and a step only one gradient. It damps drift but does not
    remove it. It costs a pass over all local data per round. With base "sgd" it is FedAvg.

    Differs from public code: U and V are those of the table in rules/mime.py. Public code makes the complete optimiser step
    on the frozen state (`frozen="full_step"`, without its bias correction). Adam's v starts at the square of the
    participants' mean gradient, which a survey collects before the local steps of round 0. eps is 1e-3, as in Mime.
    UNCONFIRMED: the table, and Adam's constants. The GradMA paper does not name the base of its MimeLite; sgdm is assumed.
    """

    lr: float | None = hp(None, "eta_l, local step size; None: 0.1, or 0.01 for adam", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)
    base: str = hp("sgdm", "the optimiser that is mimicked", choices=BASES)
    beta: float = hp(0.9, "momentum of base sgdm", least=0, below=1)
    beta1: float = hp(0.9, "adam: decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "adam: decay of the second moment", least=0, below=1)
    eps: float = hp(1e-3, "adam: added to the root of v", above=0)
    frozen: str = hp("table", "local step: by the table, or the complete step", choices=("table", "full_step"))

    def plan(self, p: Plan) -> Self:
        return replace(self, lr=self.lr or (0.01 if self.base == "adam" else 0.1))

    @property
    def optimiser(self) -> Base:
        return Base(self.base, self.beta, self.beta1, self.beta2, self.eps, self.frozen == "full_step")

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x, *self.optimiser.start(x)), None

    def surveys(self, t: int = 0) -> bool:
        return self.base == "adam" and t == 0

    def survey(self, down: Server, mem: None, steps: Steps) -> tuple[Survey, None]:
        return Survey(g=steps.full_grad(down.x)), None

    def survey_server(self, s: Server, up: Survey, r: Round) -> Server:
        return s._replace(v=r.avg(up.g) ** 2)

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            w.sub_(self.optimiser.step(steps.clip(grad(w)), down.m, down.v), alpha=planned(self.lr))
        return Up(dx=w - down.x, g=w[..., :0] if self.base == "sgd" else steps.full_grad(down.x)), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m, v = self.optimiser.statistics(r.avg(up.g), s.m, s.v)
        return Server(x=s.x + self.server_lr * r.avg(up.dx), m=m, v=v)
