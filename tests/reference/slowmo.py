"""SlowMo: docs/methods.md A6 (Wang et al. 2020) with base optimiser SGD (no buffers, rule `reset`)."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, beta: float = 0.5, alpha: float = 1.0) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    u = np.zeros_like(x)
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
        u = beta * u + delta / eta  # slow momentum
        x = x - alpha * eta * u  # outer update
        out.append(x.copy())
    return out
