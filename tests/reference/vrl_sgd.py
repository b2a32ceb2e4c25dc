"""VRL-SGD: Liang et al. 2019; docs/methods.md D10. Full participation; h[i] is the paper's Delta_i."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    h = [np.zeros_like(x) for _ in range(task.N)]
    last: list[np.ndarray | None] = [None] * task.N  # x_i^K of the previous round
    last_eta = lr
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        x_next = np.zeros_like(x)
        for i in S:
            if last[i] is not None:  # on receiving the average: learning rate of the round that moved the client
                h[i] = h[i] + (x - last[i]) / (task.K[i] * last_eta)
            y = x.copy()
            for k in range(task.K[i]):
                y = y - eta * task.clip(task.grad(i, t, k, y) - h[i])
            last[i] = y
            x_next += y / len(S)
        x = x_next
        last_eta = eta
        out.append(x.copy())
    return out
