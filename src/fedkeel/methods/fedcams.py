"""FedCAMS: FedAMS whose clients send one bit per number, with error feedback."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps
from fedkeel.rules.signs import packed_signs, unpacked_signs


class Server(NamedTuple):
    x: Tensor  # [d] global model
    m: Tensor  # [d] first moment of the mean displacement
    v: Tensor  # [d] second moment of it
    v_hat: Tensor  # [d] largest second moment so far, at least eps


class Down(NamedTuple):
    x: Tensor  # [d] global model


class Client(NamedTuple):
    e: Tensor  # [d] what this client's uploads have lost so far


class Up(NamedTuple):
    signs: Tensor  # [ceil(d / 32)] int32, the signs of dx + e
    scale: Tensor  # [1] the mean size of dx + e


@algorithm(
    "fedcams",
    paper="Wang et al. 2022, Communication-Efficient Adaptive Federated Learning, Algorithm 2",
    sends="x",
    exact=False,
    solves="communication adaptivity",
    family="server-adaptive",
    correction="error feedback",
    step="AMSGrad, floor eps",
)
@dataclass(frozen=True, kw_only=True)
class FedCAMS(Algorithm):
    """FedAMS with uploads of one bit per number: the signs of the displacement, times its mean size.

    Prefer it when uploads are the bottleneck and clients come back often, so that what one upload loses reaches the server
    with a later one. Take fedams with an uplink of another kind, such as `topk:0.0156`, if one bit per number is too coarse.

    Differs from the authors' code: a zero counts as positive, because a bit has two values. No bias correction unless you
    set `bias_correction`. Their other compressor, top-k, is fedams with `uplink="topk:SHARE"`.
    """

    lr: float = hp(0.01, "eta_l, local step size", above=0)
    server_lr: float = hp(1.0, "eta_g, server step size", above=0)
    beta1: float = hp(0.9, "decay of the first moment", least=0, below=1)
    beta2: float = hp(0.99, "decay of the second moment", least=0, below=1)
    eps: float = hp(1e-3, "first and smallest v_hat", above=0)
    bias_correction: bool = hp(False, "divide the moments by 1 - beta^(t + 1), as the authors' code does")

    def init(self, x: Tensor) -> tuple[Server, Client]:
        zero = torch.zeros_like(x)
        return Server(x=x, m=zero, v=zero, v_hat=torch.full_like(x, self.eps)), Client(e=zero)

    def client(self, down: Down, mem: Client, steps: Steps) -> tuple[Up, Client]:
        w = steps.copy(down.x)
        for grad in steps:
            grad.descend(w, self.lr)
        u = w - down.x + mem.e
        up = Up(signs=packed_signs(u), scale=u.abs().mean(-1, keepdim=True))
        return up, Client(e=u - up.scale * unpacked_signs(up.signs, down.x))

    def server(self, s: Server, up: Up, r: Round) -> Server:
        dx = r.avg(up.scale * unpacked_signs(up.signs, s.x))
        m = self.beta1 * s.m + (1 - self.beta1) * dx
        v = self.beta2 * s.v + (1 - self.beta2) * dx**2
        v_hat = torch.maximum(s.v_hat, v)  # at least eps, since it starts there
        first, second = (1 - beta ** (r.t + 1) if self.bias_correction else 1.0 for beta in (self.beta1, self.beta2))
        return Server(x=s.x + self.server_lr / first * m / (v_hat / second).sqrt(), m=m, v=v, v_hat=v_hat)
