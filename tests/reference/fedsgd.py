"""FedSGD: docs/methods.md A1 (McMahan et al. 2017, "FederatedSGD"): one gradient per participant, one server SGD step."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        g = np.zeros_like(x)
        for i in S:  # every participant: one gradient at the broadcast model
            g += task.grad(i, t, 0, x) / len(S)
        x = x - eta * g  # server
        out.append(x.copy())
    return out
