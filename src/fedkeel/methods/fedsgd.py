"""FedSGD: one gradient per client and round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.core.round import Round
from fedkeel.core.steps import Steps


class Server(NamedTuple):
    x: Tensor  # [d] global model


class Up(NamedTuple):
    g: Tensor  # [d] gradient at the global model


@algorithm("fedsgd", paper="McMahan et al. 2017, section 2", sends="x", exact=True, family="SGD", local="one gradient")
@dataclass(frozen=True, kw_only=True)
class FedSGD(Algorithm):
    """Gradient descent on the global loss: every participant sends one gradient at the global model, the server steps.

    Use it as a baseline without any drift, or when communication is free. The gradient is that of one
    mini-batch, so batch_size=None makes it exact; local_steps and local_epochs have no effect.

    Differs from the paper: clients weigh equally unless weights="samples" (the paper weighs them by their samples, n_k).
    What the Fed-LAMB paper calls Fed-SGD is FedAvg.
    """

    lr: float = hp(0.1, "eta, step size", above=0)

    def init(self, x: Tensor) -> tuple[Server, None]:
        return Server(x=x), None

    def draw(self, rng: np.random.Generator, ids: Sequence[int]) -> dict[str, np.ndarray]:
        return {"K": np.ones(len(ids), dtype=np.int64)}

    def client(self, down: Server, mem: None, steps: Steps) -> tuple[Up, None]:
        grad = next(iter(steps))
        return Up(g=steps.clip(grad(down.x)).clone()), None

    def server(self, s: Server, up: Up, r: Round) -> Server:
        return Server(x=s.x - self.lr * r.avg(up.g))
