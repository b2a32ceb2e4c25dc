"""SCAFFOLD with a scaled correction: eq. (26) of "Efficient Federated Learning via Local Adaptive Amended Optimizer
with Linear Speedup"; c takes the place of the paper's g_a, c_i of its mean local update g-bar_i (docs/methods.md
D2)."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, alpha: float = 1.0) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    c = np.zeros_like(x)
    ci = [np.zeros_like(x) for _ in range(task.N)]
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        new_ci = {}
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                xi = xi - eta * task.clip(task.grad(i, t, k, xi) + alpha * (c - ci[i]))  # eq. (26)
            displacements.append(x - xi)
            # the average local update without its correction: the average gradient, if nothing was clipped
            new_ci[i] = (x - xi) / (task.K[i] * eta) - alpha * (c - ci[i])
        x = x - server_lr * np.mean(displacements, axis=0)
        c = c + sum(new_ci[i] - ci[i] for i in cohort) / task.N
        for i in cohort:
            ci[i] = new_ci[i]
        history.append(x)
    return history
