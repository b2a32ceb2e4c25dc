"""FedLESAM (Fan et al. 2024, "Locally Estimated Global Perturbations are Better than Local Perturbations for Federated
Sharpness-aware Minimization", ICML 2024; arXiv 2405.18890). The perturbation points from the present global model to the
one that the client received in its last active round. It is fixed for the round, and zero in a client's first round."""

import numpy as np

from .task import Task
from .unit import unit


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, rho: float = 0.1) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    x_old: list[np.ndarray | None] = [None] * task.N
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        for i in cohort:
            old = x_old[i]
            e = np.zeros_like(x) if old is None else rho * unit(old - x)
            xi = x.copy()
            for k in range(task.K[i]):
                xi = xi - eta * task.grad(i, t, k, xi + e)
            x_old[i] = x
            displacements.append(x - xi)
        x = x - server_lr * np.mean(displacements, axis=0)
        history.append(x)
    return history
