"""FedVARP (Jhunjhunwala, Sharma, Nagarkatti, Joshi 2022, "FedVARP: Tackling the Variance Due to Partial Client
Participation in Federated Learning", UAI 2022): the server remembers the last displacement y_j of every client.
The step is the mean of dx_i - y_i over the participants plus the mean of y_j over all clients."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    y = [np.zeros_like(x) for _ in range(task.N)]
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        deltas = {}
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                xi = xi - eta * task.grad(i, t, k, xi)
            deltas[i] = xi - x
        v = sum(deltas[i] - y[i] for i in cohort) / len(cohort) + sum(y) / task.N  # with the old y
        x = x + server_lr * v
        for i in cohort:
            y[i] = deltas[i]
        history.append(x)
    return history
