"""FedExP (Jhunjhunwala, Wang, Joshi 2023, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023).
The server extrapolates by max(1, sum_i |dx_i|^2 / (2 S (|D|^2 + eps))). The evaluated model is the mean of the last two
iterates; training goes on from the last one. eps shrinks with the square of the learning rate, as in the authors' code."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.01, eps: float = 1e-3, average: bool = True) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)  # the iterate
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        eps_t = eps * task.lr_decay ** (2 * t)
        deltas = []
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                xi = xi - eta * task.grad(i, t, k, xi)
            deltas.append(xi - x)
        D = sum(deltas) / len(cohort)
        squares = sum(float(delta @ delta) for delta in deltas)
        step = max(1.0, squares / (2 * len(cohort) * (float(D @ D) + eps_t)))
        x_old = x
        x = x + step * D
        if average and t > 0:
            history.append((x + x_old) / 2)
        else:
            history.append(x)
    return history
