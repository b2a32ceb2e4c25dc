"""Mime: clients mimic a central optimiser, with its statistics frozen and SVRG gradients."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan, algorithm
from fedkeel.core.hyperparameters import hp, planned
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.mime import BASES, Base


class Server(NamedTuple):
    x: Tensor  # [d] global model
    c: Tensor  # [d] mean full gradient of the round's participants at x
    m: Tensor  # [d] first moment of c; empty for base "sgd"
    v: Tensor  # [d] second moment of c; empty unless the base is "adam"


class Survey(NamedTuple):
    g: Tensor  # [d] full local gradient at the global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "mime",
    paper="Karimireddy et al. 2020, Mime, Algorithm 1",
    sends="x c m v",
    exact=True,
    family="momentum",
    local="SGD, momentum or Adam, frozen",
    correction="g(w) - g(x) + c",
    gradients=2,
)
@dataclass(frozen=True, kw_only=True)
class Mime(Algorithm):
    """Local steps of a base optimiser whose statistics only the server changes, on gradients corrected as in SVRG.

    Prefer it when clients differ and cannot keep state: they all move like the central optimiser would. A round has two
    exchanges: a pass over all local data for the participants' mean gradient c, then local steps with two gradients each.

    Differs from public code: U and V are those of the table in rules/mime.py. Public code makes the complete optimiser step
    on the frozen state (`frozen="full_step"`, without its bias correction). Adam's v starts at c^2 of the first round. eps
    is 1e-3, because a coordinate that is 0 for all clients of that round is divided by eps alone until its v is updated.
    UNCONFIRMED: the table, and Adam's constants.
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
        return Server(x, torch.zeros_like(x), *self.optimiser.start(x)), None

    def surveys(self, t: int = 0) -> bool:
        return True

    def survey(self, down: Server, mem: None, steps: Steps) -> tuple[Survey, None]:
        return Survey(g=steps.full_grad(down.x)), None

    def survey_server(self, s: Server, up: Survey, r: Round) -> Server:
        c = r.avg(up.g)
        return s._replace(c=c, v=c**2 if self.base == "adam" and r.t == 0 else s.v)

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        for grad in steps:
            u = grad(w).sub_(grad(down.x)).add_(down.c)
            w.sub_(self.optimiser.step(steps.clip(u), down.m, down.v), alpha=planned(self.lr))
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        m, v = self.optimiser.statistics(s.c, s.m, s.v)
        return Server(x=s.x + self.server_lr * r.avg(up.dx), c=s.c, m=m, v=v)
