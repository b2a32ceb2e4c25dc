"""Delta-SGD: every client sets its step from the curvature that it meets."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model


@algorithm(
    "delta-sgd",
    paper="Kim et al. 2024, Adaptive Federated Learning with Auto-Tuned Clients, Algorithm 1",
    sends="x",
    exact=False,
    solves="adaptivity",
    family="client-adaptive",
    local="SGD, step from curvature",
    gradients=2,
    same=["gamma=1e30 delta=0 eta0=0.1 -> fedavg", "gamma=1e30 delta=0 eta0=0.1 same_batch=false -> fedavg"],
)
@dataclass(frozen=True, kw_only=True)
class DeltaSGD(Algorithm):
    """FedAvg whose clients divide how far they moved by how much the gradient changed, and take that as their next step.

    Prefer it when nobody can tune a learning rate for each kind of client and their curvature differs. It costs a second
    gradient a step; with same_batch=False it does not, but then the estimate is noisy.

    Differs from the authors' code: the first step is eta0 (in the code eta0 sqrt(1 + delta)), and no eps is added to a step.
    lr_decay has no effect.
    UNCONFIRMED: whether the listing compares gradients of the same batch, as the code does.
    """

    eta0: float = hp(0.2, "first step size of every round", above=0)
    gamma: float = hp(2.0, "scale of the step from curvature", above=0)
    delta: float = hp(0.1, "how fast steps may grow: by sqrt(1 + delta theta)", least=0)
    same_batch: bool = hp(True, "compare two gradients of the same batch: a second gradient a step")
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w = steps.copy(down.x)
        w_old, g_old = steps.zeros(), steps.zeros()
        eta = torch.full_like(w[..., :1], self.eta0)
        theta = torch.ones_like(eta)
        for k, grad in enumerate(steps):
            g = steps.clip(grad(w))
            if k > 0:
                before = steps.clip(grad(w_old)) if self.same_batch else g_old
                moved = torch.linalg.vector_norm(w - w_old, dim=-1, keepdim=True)
                changed = torch.linalg.vector_norm(g - before, dim=-1, keepdim=True)
                flat = (moved == 0) | (changed == 0)  # says nothing about the curvature
                new = torch.where(flat, torch.inf, self.gamma * moved / (2 * changed))
                new = torch.minimum(new, (1 + self.delta * theta).sqrt() * eta)
                theta, eta = new / eta, new
            w_old.copy_(w)
            g_old.copy_(g)
            w.sub_(eta * g)
        return Up(dx=w - down.x), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x + self.server_lr * r.avg(up.dx))

    def at(self, t: int, lr_decay: float = 1.0) -> Self:
        return self
