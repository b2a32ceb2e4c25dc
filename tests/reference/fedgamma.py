"""FedGAMMA ("FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization", IEEE TNNLS 2023): SCAFFOLD with
perturbed gradients. The perturbation follows the plain gradient, not the corrected one."""

import numpy as np

from .task import Task
from .unit import unit


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, rho: float = 0.1) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    c = np.zeros_like(x)  # server state
    ci = [np.zeros_like(x) for _ in range(task.N)]  # client state
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        change = np.zeros_like(x)
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                e = rho * unit(task.grad(i, t, k, xi))
                a = task.grad(i, t, k, xi + e)
                xi = xi - eta * task.clip(a + c - ci[i])
            c_new = ci[i] - c + (x - xi) / (task.K[i] * eta)
            change = change + (c_new - ci[i])
            ci[i] = c_new
            displacements.append(x - xi)
        x = x - server_lr * np.mean(displacements, axis=0)
        c = c + change / task.N
        history.append(x)
    return history
