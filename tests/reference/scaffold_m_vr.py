"""SCAFFOLD-M-VR: Cheng et al. 2024; the local direction is line 7 of Alg. 2 of "Problem-Parameter Free Federated
Learning" without its normalisation; docs/methods.md D5 (server as D4). The server momentum is the mean direction.

gamma = None means server_lr * lr_t * mean K of the round.
"""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    gamma: float | None = None,
    beta: float = 0.1,
    start: str = "zero",
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    x_old = x.copy()  # x^{-1} = x^0
    c_i = [np.zeros_like(x) for _ in range(task.N)]
    if start == "warmup":
        for i in range(task.N):
            for k in range(task.K[i]):
                c_i[i] = c_i[i] + task.grad(i, -1, k, x) / task.K[i]
    c = sum(c_i) / task.N
    g_bar = c.copy()
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        K_bar = sum(task.K[i] for i in S) / len(S)
        delta = np.zeros_like(x)
        c_change = np.zeros_like(x)
        for i in S:
            y = x.copy()
            c_new = np.zeros_like(x)
            for k in range(task.K[i]):
                g = task.grad(i, t, k, y)
                g_old = task.grad(i, t, k, x_old)  # same batch at x^{t-1}
                u = g + beta * (c - c_i[i]) + (1.0 - beta) * (g_bar - g_old)
                y = y - eta * u
                c_new = c_new + g / task.K[i]
            delta += (x - y) / len(S)
            c_change += c_new - c_i[i]
            c_i[i] = c_new
        g_bar = delta / (eta * K_bar)
        x_old = x
        x = x - (server_lr * eta * K_bar if gamma is None else gamma) * g_bar
        c = c + c_change / task.N
        out.append(x.copy())
    return out
