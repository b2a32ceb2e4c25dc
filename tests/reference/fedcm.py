"""FedCM (Xu et al. 2021, "FedCM: Federated Learning with Client-level Momentum"). The listing is not among the five
papers: section E1 of docs/methods.md, i.e. Algorithm 3 of "Efficient Federated Learning via Local Adaptive Amended
Optimizer with Linear Speedup" with the raw gradient for m * theta (lines 12, 17, 18)."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, alpha: float = 0.1) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    g_bar = np.zeros_like(x)
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                xi = xi - eta * (alpha * task.grad(i, t, k, xi) + (1 - alpha) * g_bar)  # line 12
            displacements.append(x - xi)  # line 14
        delta = np.mean(displacements, axis=0)
        x = x - server_lr * delta  # line 17
        K_bar = np.mean([task.K[i] for i in cohort])
        g_bar = delta / (eta * K_bar)  # line 18, the learning rate of the round that produced delta
        history.append(x)
    return history
