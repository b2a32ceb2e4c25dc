"""FedAvgM: Algorithm 5 of "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic
Forgetting" (heavy ball, no damping)."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, beta1: float = 0.9) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    m = np.zeros_like(x)  # line 2
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 3
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:  # line 7
            xi = x.copy()  # line 8
            for k in range(task.K[i]):  # line 9
                xi = xi - eta * task.grad(i, t, k, xi)  # line 10
            displacements.append(x - xi)  # line 13
        m = beta1 * m + np.mean(displacements, axis=0)  # line 16
        x = x - server_lr * m  # line 17
        history.append(x)
    return history
