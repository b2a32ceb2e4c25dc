"""MOON: contrastive learning between the global, the local and the last local model."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.ranges import NotNegative
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.loss_terms import contrast


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    x_prev: Tensor  # [d] this client's last local model
    seen: NotNegative  # [1] 1 if there is one, else 0


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "moon",
    paper="Li et al. 2021, Algorithm 1",
    sends="x",
    exact=False,
    solves="drift",
    family="representation",
    correction="contrastive loss",
    needs="features",
    same=["mu=0 -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class MOON(Algorithm):
    """Local SGD with a contrastive term: features are drawn to the global model's and away from the client's last ones.

    Prefer it for vision models under label skew, where representations drift apart. The model has to show its features
    (core/features.py); a step needs three forward passes.

    Differs from the paper: no projection head is added; the features are the inputs of the last layer. Plain SGD is used,
    as in the GradMA paper. There is no contrastive term until the client has a last local model (the code takes an
    untrained one). Clients weigh equally unless weights="samples" (the original weighs them by their samples).
    """

    lr: float = hp(0.1, "eta_l, local step size", above=0, grid=(0.001, 0.01, 0.1))
    mu: float = hp(1.0, "weight of the contrastive term", least=0, grid=(0.001, 0.01, 0.1, 1, 5, 10))
    temperature: float = hp(0.5, "tau of the contrastive term", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0, grid=(0.1, 1, 10))

    def init(self, x: Tensor) -> tuple[Server, Client]:
        return Server(x=x), Client(x_prev=x, seen=x.new_zeros(1))

    def client(self, down: Server, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        for grad in steps:
            # A client without a last model has no term: its weight is 0.
            u = grad.plus(contrast(self.temperature), w, down.x, mem.x_prev, weight=self.mu * mem.seen)
            w.sub_(steps.clip(u), alpha=self.lr)
        return Up(dx=w - down.x), Client(x_prev=w, seen=torch.ones_like(mem.seen))

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))
