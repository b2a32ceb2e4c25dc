"""FedProx: the FedProxM branch of Algorithm 5 (line 11) with beta_1 = 0, of "GradMA: A Gradient-Memory-based
Accelerated Federated Learning with Alleviated Catastrophic Forgetting"."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, mu: float = 0.1) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:  # line 7
            xi = x.copy()  # line 8
            for k in range(task.K[i]):  # line 9
                xi = xi - eta * (task.grad(i, t, k, xi) + mu * (xi - x))  # line 11
            displacements.append(x - xi)  # line 13
        x = x - server_lr * np.mean(displacements, axis=0)  # lines 16-17, m = d
        history.append(x)
    return history
