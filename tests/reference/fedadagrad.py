"""FedAdagrad: Reddi et al. 2021; docs/methods.md B1. Delta is the descent displacement."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 0.1,
    beta1: float = 0.0,
    tau: float = 1e-3,
    v0: float | None = None,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)
    v = np.full_like(x, tau**2 if v0 is None else v0)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        delta = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                y = y - eta * task.grad(i, t, k, y)
            delta += (x - y) / len(S)
        m = beta1 * m + (1.0 - beta1) * delta
        v = v + delta**2
        x = x - server_lr * m / (np.sqrt(v) + tau)
        out.append(x.copy())
    return out
