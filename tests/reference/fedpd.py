"""FedPD: Zhang et al. 2021, local SGD, communication in every round (p = 0); docs/methods.md F2.

Full participation. eta is the penalty, lr the local step eta_1. warm_start: a client starts from its last x_i."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.01, eta: float = 1.0, warm_start: bool = True) -> list[np.ndarray]:
    x0 = np.array(task.x0, dtype=np.float64)
    lam = [np.zeros_like(x0) for _ in range(task.N)]
    x = [x0.copy() for _ in range(task.N)]
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta_1 = lr * task.lr_decay**t
        x0_next = np.zeros_like(x0)
        for i in S:
            y = x[i].copy() if warm_start else x0.copy()
            for k in range(task.K[i]):  # descent on the augmented Lagrangian in x_i
                y = y - eta_1 * (task.grad(i, t, k, y) + lam[i] + (y - x0) / eta)
            lam[i] = lam[i] + (y - x0) / eta
            x[i] = y
            x0_next += (y + eta * lam[i]) / len(S)
        x0 = x0_next
        out.append(x0.copy())
    return out
