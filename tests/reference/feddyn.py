"""FedDyn: Acar et al. 2021 (the exact local minimisation replaced by K SGD steps); docs/methods.md F1."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, alpha: float = 0.01) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    h = np.zeros_like(x)
    lam = [np.zeros_like(x) for _ in range(task.N)]  # estimate of the local gradient at the last local model
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        mean = np.zeros_like(x)
        moved = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                y = y - eta * (task.grad(i, t, k, y) - lam[i] + alpha * (y - x))
            lam[i] = lam[i] - alpha * (y - x)
            mean += y / len(S)
            moved += y - x
        h = h - alpha * moved / task.N
        x = mean - h / alpha
        out.append(x.copy())
    return out
