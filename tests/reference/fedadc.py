"""FedADC: Ozfatura, Ozfatura and Gunduz 2021; docs/methods.md E2 (UNCONFIRMED listing, heavy-ball form)."""

import numpy as np

from .task import Task


def run(
    task: Task, *, lr: float = 0.1, server_lr: float = 1.0, beta_g: float = 0.9, beta_l: float = 0.9
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        delta = np.zeros_like(x)
        for i in S:
            y = x.copy()
            m_bar = beta_l * m / task.K[i]  # embedded momentum, spread over the client's own steps
            for k in range(task.K[i]):
                y = y - eta * (task.grad(i, t, k, y) + m_bar)
            delta += (x - y) / len(S)
        m = delta / eta + (beta_g - beta_l) * m
        x = x - server_lr * eta * m
        out.append(x.copy())
    return out
