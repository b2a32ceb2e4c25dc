"""FedSAM (Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022; Caldarola, Caputo,
Ciccone 2022, "Improving Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022).
Both gradients of a step use the same mini-batch."""

import numpy as np

from .task import Task
from .unit import unit


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, rho: float = 0.1) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                e = rho * unit(task.grad(i, t, k, xi))  # ascent
                xi = xi - eta * task.grad(i, t, k, xi + e)  # descent
            displacements.append(x - xi)
        x = x - server_lr * np.mean(displacements, axis=0)
        history.append(x)
    return history
