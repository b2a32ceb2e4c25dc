"""GradMA-W: Algorithms 7 and 2 of "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated
Catastrophic Forgetting". The three gradients of a step are taken on the same batch."""

import numpy as np

from .qp import project
from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, old_model: str = "last_local") -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    last = [x.copy() for _ in range(task.N)]  # Alg. 7, line 2
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 3
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:  # line 7
            previous = last[i] if old_model == "last_local" else x.copy()  # Alg. 2, line 1
            xi = x.copy()
            for k in range(task.K[i]):  # Alg. 2, line 2
                g = task.grad(i, t, k, xi)  # line 3
                G = [task.grad(i, t, k, previous), task.grad(i, t, k, x), xi - x]  # line 4
                previous = xi
                xi = xi - eta * project(g, G)  # lines 5-6
            last[i] = xi  # Alg. 7, line 8
            displacements.append(x - xi)  # line 9
        x = x - server_lr * np.mean(displacements, axis=0)  # line 12
        history.append(x)
    return history
