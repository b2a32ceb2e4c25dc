"""What every numpy reference is given: a small federated problem, spelled out number by number.

A reference is a module `tests/reference/<name with - as _>.py` with one function

    def run(task: Task, **hyperparameters) -> list[np.ndarray]

that returns the global model after every round (length task.T, each [d], float64). It is transcribed from the
paper with plain loops, so that a reader can lay it beside the listing, and it shares no code with fedkeel.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Vector = np.ndarray


@dataclass
class Task:
    x0: Vector  # [d] initial global model
    N: int  # number of clients
    cohorts: list[list[int]]  # participants S_t of every round, each in increasing order
    K: list[int]  # local steps of client i (they may differ between clients)
    grad: Callable[
        [int, int, int, Vector], Vector
    ]  # grad(i, t, k, w): mini-batch gradient of client i, round t, step k, at w
    full_grad: Callable[[int, Vector], Vector]  # full_grad(i, w): gradient over all data of client i
    loss: Callable[[int, int, int, Vector], float]  # loss of the same mini-batch as grad
    lr_decay: float = 1.0  # the local learning rate of round t is lr * lr_decay**t
    layers: list[slice] = field(default_factory=list)  # the coordinates of each parameter tensor
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # the shape of each parameter tensor (FedMuon)
    clip: Callable[[Vector], Vector] = lambda u: u  # the local direction, scaled to the run's largest norm (rule R6)
    tracking: list[list[int]] = field(default_factory=list)  # Y_t, a subset of cohorts[t] (FAdamET, FAdamGT)
    # Asynchronous runs (FADAS): the round from whose model, and with whose batches, each client of cohorts[t] worked.
    # Empty: all of them started in round t.
    started: list[list[int]] = field(default_factory=list)

    @property
    def T(self) -> int:
        return len(self.cohorts)
