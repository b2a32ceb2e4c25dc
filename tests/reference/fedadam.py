"""FedAdam (Adp-Fed): Algorithm 1 of the supplement of "Fed-LAMB: Layer-wise and Dimension-wise Locally Adaptive
Federated Learning", with the gradient at the current local model (line 7 prints theta^0) and the denominator sqrt(v)
+ tau of section B2 of docs/methods.md. The sign is turned: a displacement points downhill and is subtracted."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v0: float | None = None,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    m = np.zeros_like(x)  # line 2
    v = np.full_like(x, tau**2 if v0 is None else v0)
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 3
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:  # line 4
            xi = x.copy()  # line 5
            for k in range(task.K[i]):  # line 6
                xi = xi - eta * task.grad(i, t, k, xi)  # lines 7-8
            displacements.append(x - xi)  # line 10, minus the paper's Delta
        delta = np.mean(displacements, axis=0)  # line 12
        m = beta1 * m + (1 - beta1) * delta  # line 13
        v = beta2 * v + (1 - beta2) * delta**2  # line 14
        x = x - server_lr * m / (np.sqrt(v) + tau)  # line 15
        history.append(x)
    return history
