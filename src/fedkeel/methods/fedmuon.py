"""FedMuon: local Muon on matrices with a shared momentum and a shared direction."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.adam import adam_step
from fedkeel.rules.muon import in_matrices, muon_direction


class Server(NamedTuple):
    x: Tensor  # [d] global model
    D: Tensor  # [d] mean direction of the last round
    M: Tensor  # [d] mean momentum of the matrices; 0 for other tensors


class Up(NamedTuple):
    dx: Tensor  # [d] local minus global model
    M: Tensor  # [d] momentum of the matrices after the local steps; 0 for other tensors


@algorithm(
    "fedmuon",
    paper="Liu et al. 2025, FedMuon: Accelerating Federated Learning with Matrix Orthogonalization",
    sends="x D M",
    exact=False,
    solves="adaptivity drift",
    family="client-adaptive",
    local="Muon; AdamW for vectors",
    correction="mix with mean direction",
)
@dataclass(frozen=True, kw_only=True)
class FedMuon(Algorithm):
    """Steps of matrices are orthogonalised momentum (Muon), steps of vectors are AdamW's. Both are mixed with the mean
    direction of the last round.

    Prefer it when the hidden layers are large matrices, as in transformers, and AdamW is the rival. A step needs some 15
    more products of matrices. A tensor with more than two dimensions is read as a matrix [first, rest].

    Differs from the authors' code: orthogonalisation in the model's dtype (there bfloat16), and its scale is taken from the
    flattened matrix; scale="original" is the code's. M travels as a full vector with zeros, the code sends matrices only.
    UNCONFIRMED: the update is the code's. The transcribed listing has an exact orthogonalisation, M <- beta M + g, and
    neither Nesterov's form nor scale nor decay. The paper's beta. Another paper of this name (Takezawa et al.) is not this.
    """

    lr: float = hp(3e-4, "eta, local step size of AdamW", above=0)
    muon_scale: float = hp(10.0, "step size of matrices, times lr", above=0)
    alpha: float = hp(0.5, "weight of the mean direction", least=0, below=1)
    beta: float = hp(0.98, "decay of the matrices' momentum", least=0, below=1)
    wd: float = hp(0.01, "decoupled weight decay", least=0)
    beta1: float = hp(0.9, "decay of AdamW's first moment", least=0, below=1)
    beta2: float = hp(0.95, "decay of AdamW's second moment", least=0, below=1)
    eps: float = hp(1e-10, "added to the root of AdamW's second moment", above=0)
    ns_steps: int = hp(5, "iterations of the orthogonalisation", least=1)
    scale: str = hp("matrix", "rows / columns of the flattened or the original tensor", choices=("matrix", "original"))
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        zero = torch.zeros_like(x)
        return Server(x=x, D=zero, M=zero), None

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        w, M = steps.copy(down.x), steps.copy(down.M)
        a, b = steps.zeros(), steps.zeros()
        matrix = in_matrices(steps.layers, down.x)
        size = self.lr * (1 - self.alpha) * (1 + (self.muon_scale - 1) * matrix)
        for k, grad in enumerate(steps, start=1):
            g = steps.clip(grad(w))
            M.lerp_(g * matrix, 1 - self.beta)
            U = muon_direction(torch.lerp(M, g, 1 - self.beta), steps.layers, self.ns_steps, self.scale)
            adam = torch.zeros_like(w)
            adam_step(adam, g, a, b, -1.0, (self.beta1, self.beta2), self.eps, k)
            u = torch.where(matrix > 0, U, adam).add_(w, alpha=self.wd)
            w.sub_(size * u).sub_(down.D, alpha=self.lr * self.alpha)
        return Up(dx=w - down.x, M=M), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.dx)
        return Server(x=s.x + self.server_lr * dx, D=dx / (-self.lr * r.K_mean), M=r.avg(up.M))
