"""LocalAdam with private second moments, the baseline of "Parameter Tracking in Federated Learning with Adaptive
Optimization": its Algorithm 1 with y = y_i = 0 throughout."""

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
    vi = [np.zeros_like(x) for _ in range(task.N)]
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 3
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:  # line 7
            xi, m, v, v_hat = x.copy(), np.zeros_like(x), vi[i].copy(), vi[i].copy()  # line 8
            for k in range(task.K[i]):  # line 9
                g = task.grad(i, t, k, xi)  # line 10
                m = beta1 * m + (1 - beta1) * g  # line 13
                v = beta2 * v + (1 - beta2) * g * g  # line 14
                v_hat = np.maximum(v_hat, v)  # line 15
                xi = xi - eta * m / (np.sqrt(v_hat) + eps)  # lines 16, 18
            vi[i] = v  # line 24
            displacements.append(x - xi)  # line 26
        x = x - server_lr * np.mean(displacements, axis=0)  # line 28
        history.append(x)
    return history
