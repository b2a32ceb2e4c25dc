"""FAdamGT: Algorithm 1 of "Parameter Tracking in Federated Learning with Adaptive Optimization" (GT branch)."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 1e-3,
    server_lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    y = np.zeros_like(x)
    yi = [np.zeros_like(x) for _ in range(task.N)]
    vi = [np.zeros_like(x) for _ in range(task.N)]
    tracking = task.tracking or task.cohorts  # line 5; not given: every participant
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 3
        eta = lr * task.lr_decay**t
        changes = []
        new_yi = {}
        for i in cohort:  # line 7
            xi, m, v, v_hat = x.copy(), np.zeros_like(x), vi[i].copy(), vi[i].copy()  # line 8
            total = np.zeros_like(x)
            for k in range(task.K[i]):  # line 9
                g = task.grad(i, t, k, xi)  # line 10
                g_hat = task.clip(g + y - yi[i])  # line 12
                total = total + g_hat - (y - yi[i])  # g, unless it was clipped
                m = beta1 * m + (1 - beta1) * g_hat  # line 13
                v = beta2 * v + (1 - beta2) * g_hat * g_hat  # line 14
                v_hat = np.maximum(v_hat, v)  # line 15
                xi = xi - eta * m / (np.sqrt(v_hat) + eps)  # lines 16, 18
            if i in tracking[t]:  # line 20
                new_yi[i] = total / task.K[i]  # line 22
            vi[i] = v  # line 24
            changes.append(xi - x)  # line 26
        x = x + server_lr * np.mean(changes, axis=0)  # line 28
        for i, value in new_yi.items():
            y = y + (value - yi[i]) / task.N  # line 29
            yi[i] = value
        history.append(x)
    return history
