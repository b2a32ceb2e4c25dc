"""ProxSkip / Scaffnew: Mishchenko et al. 2022, with the fixed schedule "communicate every K-th step", p = 1/K;
docs/methods.md D11. Full participation; the method has one K for all clients (p = 1 / mean K_i otherwise)."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    h = [np.zeros_like(x) for _ in range(task.N)]
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        gamma = lr * task.lr_decay**t
        p = len(S) / sum(task.K[i] for i in S)
        hat = {}
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                y = y - gamma * task.clip(task.grad(i, t, k, y) - h[i])  # x_hat; skipped prox: x = x_hat, h unchanged
            hat[i] = y
        x = sum(hat.values()) / len(S)  # prox of the consensus indicator
        for i in S:
            h[i] = h[i] + (p / gamma) * (x - hat[i])
        out.append(x.copy())
    return out
