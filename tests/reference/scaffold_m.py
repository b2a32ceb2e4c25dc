"""SCAFFOLD-M (Cheng et al. 2024, "Momentum Benefits Non-IID Federated Learning Simply and Provably"). The listing is
not among the five papers: section D4 of docs/methods.md, i.e. Algorithm 1 of "Problem-Parameter Free Federated
Learning" with line 8 unnormalised and the aggregated local updates of line 13 as momentum. gamma = None means gamma =
server_lr * lr * K-bar."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    gamma: float | None = None,
    beta: float = 0.1,
    start: str = "zero",
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    ci = [np.zeros_like(x) for _ in range(task.N)]
    if start == "warmup":  # line 1
        for i in range(task.N):
            ci[i] = sum(task.grad(i, -1, k, x) for k in range(task.K[i])) / task.K[i]
    c = sum(ci) / task.N
    g_bar = c.copy()
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 2
        eta = lr * task.lr_decay**t
        displacements = []
        new_ci = {}
        for i in cohort:  # line 4
            xi = x.copy()  # line 5
            for k in range(task.K[i]):  # line 6
                g = task.grad(i, t, k, xi)
                u = task.clip(beta * (g - ci[i] + c) + (1 - beta) * g_bar)  # line 7
                xi = xi - eta * u  # line 8 without the normalisation
            # Line 10 as SCAFFOLD's option II has it, from the displacement: the mean gradient, if nothing was clipped.
            rest = beta * (c - ci[i]) + (1 - beta) * g_bar
            new_ci[i] = ((x - xi) / (task.K[i] * eta) - rest) / beta
            displacements.append(x - xi)
        K_bar = np.mean([task.K[i] for i in cohort])
        g_bar = np.mean(displacements, axis=0) / (eta * K_bar)  # line 13
        step = server_lr * eta * K_bar if gamma is None else gamma
        x = x - step * g_bar  # line 14
        c = c + sum(new_ci[i] - ci[i] for i in cohort) / task.N  # line 15
        for i in cohort:
            ci[i] = new_ci[i]
        history.append(x)
    return history
