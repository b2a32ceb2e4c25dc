"""FedSMOO (Sun, Shen, Chen, Ding, Tao 2023, "Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
Approaching Global Consistency and Smooth Landscape", ICML 2023; arXiv 2305.11584): FedDyn on the weights, and a second
dual that ties the clients' perturbations to a global one. `drop_e=True` is the public code FL-Simulator."""

import numpy as np

from .task import Task
from .unit import unit


def run(task: Task, *, lr: float = 0.1, beta: float = 10.0, rho: float = 0.1, drop_e: bool = False) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    s = np.zeros_like(x)  # global perturbation
    lam = [np.zeros_like(x) for _ in range(task.N)]  # dual of the weights
    mu = [np.zeros_like(x) for _ in range(task.N)]  # dual of the perturbation
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        models, perturbations = [], []
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                e = rho * unit(task.grad(i, t, k, xi) - mu[i] - s)
                mu[i] = mu[i] + e - s
                xi = xi - eta * (task.grad(i, t, k, xi + e) - lam[i] + (xi - x) / beta)
            lam[i] = lam[i] - (xi - x) / beta
            models.append(xi)
            perturbations.append(mu[i] if drop_e else mu[i] - e)
        s = rho * unit(sum(perturbations) / len(cohort))
        h = sum(lam) / task.N  # the mean dual of all clients
        x = sum(models) / len(cohort) - beta * h
        history.append(x)
    return history
