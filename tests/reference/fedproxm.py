"""FedProxM: "GradMA" paper, Alg. 5 (lines 8-17, the FedProxM branch); docs/methods.md A7."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, mu: float = 0.01, beta1: float = 0.9) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)  # line 2
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        d = np.zeros_like(x)
        for i in S:
            y = x.copy()  # line 8
            for k in range(task.K[i]):
                y = y - eta * (task.grad(i, t, k, y) + mu * (y - x))  # line 11
            d += (x - y) / len(S)  # lines 13, 16
        m = beta1 * m + d  # line 16
        x = x - server_lr * m  # line 17
        out.append(x.copy())
    return out
