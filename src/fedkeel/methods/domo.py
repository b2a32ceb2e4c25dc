"""DOMO: server and local momentum, fused before the local steps."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model
    z: Tensor  # [d] where clients start: x moved along the momentum
    m: Tensor  # [d] momentum, in units of a gradient


class Down(NamedTuple):
    z: Tensor  # [d] where clients start: x moved along the momentum


class Up(NamedTuple):
    dz: Tensor  # [d] local model minus z


@algorithm(
    "domo",
    paper="Xu and Huang 2022, Coordinating Momenta for Cross-silo Federated Learning, Algorithm 1",
    sends="z",
    exact=False,
    solves="communication drift",
    family="momentum",
    local="SGD, momentum",
    correction="starts ahead along the momentum",
    step="heavy ball",
    same=["beta_f=0 mu_l=0 lr=0.1 -> fedavgm beta1=0.9"],
)
@dataclass(frozen=True, kw_only=True)
class DOMO(Algorithm):
    """FedAvgM with momentum on the clients, too. They start where the server's momentum would have taken them.

    Prefer it to FedAvgM with local momentum when K is large: gradients are taken ahead, as in Nesterov's method, at no
    cost in communication. Three momenta multiply the step, so choose a small lr.

    Differs from the paper: the update is that of third-party code. Clients start ahead by beta_f / server_lr times the
    server's last step. That step used lr K of the round before, which matters if the learning rate decays or the K_i differ.
    UNCONFIRMED: mu_s, mu_l and beta_f are typical values. The variant DOMO-S is left out.
    """

    lr: float = hp(0.01, "eta_l, local step size", above=0)
    mu_s: float = hp(0.9, "momentum of the server", least=0, below=1)
    mu_l: float = hp(0.9, "local momentum, starts at 0 in every round", least=0, below=1)
    beta_f: float = hp(0.9, "how far along the server's momentum clients start", least=0)
    server_lr: float = hp(1.0, "alpha_s, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x, z=x, m=torch.zeros_like(x)), None

    def client(self, down: Down, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.z)
        u = steps.zeros()
        for grad in steps:
            u.mul_(self.mu_l).add_(steps.clip(grad(w)))
            w.sub_(u, alpha=self.lr)
        return Up(dz=w - down.z), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        span = self.lr * r.K_mean
        m = self.mu_s * s.m - r.avg(up.dz) / span
        x = s.x - self.server_lr * span * m  # from x, not from z
        return Server(x=x, z=x - self.beta_f * span * m, m=m)
