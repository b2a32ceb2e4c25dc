"""MoFedSAM (Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022): FedSAM whose
clients mix in the mean direction of the last round, as FedCM does."""

import numpy as np

from .task import Task
from .unit import unit


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, rho: float = 0.1, alpha: float = 0.1) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    m = np.zeros_like(x)  # mean direction of the last round
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                e = rho * unit(task.grad(i, t, k, xi))
                g = task.grad(i, t, k, xi + e)
                xi = xi - eta * (alpha * g + (1 - alpha) * m)
            displacements.append(x - xi)
        mean = np.mean(displacements, axis=0)
        x = x - server_lr * mean
        K_mean = np.mean([task.K[i] for i in cohort])
        m = mean / (eta * K_mean)  # the learning rate of the round that made the displacement
        history.append(x)
    return history
