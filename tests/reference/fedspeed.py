"""FedSpeed (Sun, Shen, Huang, Ding, Tao 2023, "FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy", ICLR 2023, Algorithm 1; arXiv 2302.10429), with prox = 1 / lambda and an ascent step of length rho.
`dual="all"` is the method of the public code FL-Simulator: the server adds the mean of all clients' duals."""

import numpy as np

from .task import Task
from .unit import unit


def run(
    task: Task,
    *,
    lr: float = 0.1,
    prox: float = 0.1,
    alpha: float = 0.9375,
    rho: float = 0.1,
    dual: str = "participants",
) -> list[np.ndarray]:
    lam = 1 / prox
    x = task.x0.astype(np.float64)
    g_hat = [np.zeros_like(x) for _ in range(task.N)]  # prox-correction of client i
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        models = {}
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                g1 = task.grad(i, t, k, xi)
                g2 = task.grad(i, t, k, xi + rho * unit(g1))
                quasi = (1 - alpha) * g1 + alpha * g2
                xi = xi - eta * (quasi - g_hat[i] + (xi - x) / lam)
            g_hat[i] = g_hat[i] - (xi - x) / lam
            models[i] = xi
        if dual == "all":
            x = sum(models.values()) / len(cohort) - lam * sum(g_hat) / task.N
        else:
            x = sum(models[i] - lam * g_hat[i] for i in cohort) / len(cohort)
        history.append(x)
    return history
