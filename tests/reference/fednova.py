"""FedNova: docs/methods.md A4 (Wang et al. 2020, with the a_i of plain SGD, momentum SGD and proximal SGD).

`beta` is the optional slow server momentum (0 = off). Momentum and prox together are rejected (docs/methods.md#fednova).
"""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, momentum: float = 0.0, mu: float = 0.0, beta: float = 0.0) -> list[np.ndarray]:
    if momentum > 0 and mu > 0:
        raise ValueError("momentum and mu together are not defined")
    x = np.array(task.x0, dtype=np.float64)
    u_s = np.zeros_like(x)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        p = 1.0 / len(S)
        direction = np.zeros_like(x)  # sum_i p_i Delta_i / ||a_i||_1
        tau_eff = 0.0
        for i in S:
            y = x.copy()
            u = np.zeros_like(x)
            a, q = 0.0, 0.0
            for k in range(task.K[i]):
                u = momentum * u + task.grad(i, t, k, y)
                y = y - eta * (u + mu * (y - x))
                if mu > 0:
                    a = (1.0 - eta * mu) * a + 1.0
                else:
                    q = momentum * q + 1.0  # momentum = 0: q = 1, a counts the steps
                    a = a + q
            direction += p * (x - y) / a
            tau_eff += p * (task.K[i] if mu > 0 else a)
        D = tau_eff * direction
        u_s = beta * u_s + D / eta  # beta = 0: x <- x - D
        x = x - eta * u_s
        out.append(x.copy())
    return out
