"""FedACG (Kim, Kim, Han 2024, "Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR 2024;
arXiv 2201.03172). The clients start at the model that lies one momentum step ahead and stay near it."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, lam: float = 0.85, beta: float = 0.001) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    m = np.zeros_like(x)
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        z = x + lam * m  # the server sends this
        deltas = []
        for i in cohort:
            xi = z.copy()
            for k in range(task.K[i]):
                xi = xi - eta * (task.grad(i, t, k, xi) + beta * (xi - z))
            deltas.append(xi - z)
        m = lam * m + np.mean(deltas, axis=0)
        x = x + m
        history.append(x)
    return history
