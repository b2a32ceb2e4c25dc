"""DOMO: Xu and Huang 2022 (pre-momentum fusion); docs/methods.md E5. The fused start is computed when a round ends, with
that round's learning rate and mean K, as in third-party code; the displacement is measured from the fused start."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    mu_s: float = 0.9,
    mu_l: float = 0.9,
    beta_f: float = 0.9,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)
    z = x.copy()
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        K_bar = sum(task.K[i] for i in S) / len(S)
        delta = np.zeros_like(x)
        for i in S:
            y = z.copy()
            u = np.zeros_like(x)  # local buffer reset
            for k in range(task.K[i]):
                u = mu_l * u + task.grad(i, t, k, y)
                y = y - eta * u
            delta += (z - y) / len(S)
        m = mu_s * m + delta / (eta * K_bar)
        x = x - server_lr * eta * K_bar * m  # from x, not from z
        z = x - beta_f * eta * K_bar * m  # fused start of the next round
        out.append(x.copy())
    return out
