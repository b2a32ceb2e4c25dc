"""PAdaMFed: Algorithm 1 of "Problem-Parameter Free Federated Learning", step sizes of Theorem 1 unless given."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float | None = None,
    gamma: float | None = None,
    beta: float | None = None,
    start: str = "warmup",
) -> list[np.ndarray]:
    S, K, T = len(task.cohorts[0]), float(np.mean(task.K)), task.T
    lr = 1 / (K * np.sqrt(T)) if lr is None else lr  # Theorem 1
    gamma = (S * K) ** 0.25 / T**0.75 if gamma is None else gamma
    beta = min(1.0, np.sqrt(S * K / T)) if beta is None else beta
    x = task.x0.astype(np.float64)
    ci = [np.zeros_like(x) for _ in range(task.N)]
    if start == "warmup":  # line 1
        for i in range(task.N):
            ci[i] = sum(task.grad(i, -1, k, x) for k in range(task.K[i])) / task.K[i]
    c = sum(ci) / task.N
    g = c.copy()
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 2
        eta = lr * task.lr_decay**t
        displacements = []
        new_ci = {}
        for i in cohort:  # line 4
            xi = x.copy()  # line 5
            new_ci[i] = np.zeros_like(x)
            for k in range(task.K[i]):  # line 6
                grad = task.grad(i, t, k, xi)
                u = beta * (grad - ci[i] + c) + (1 - beta) * g  # line 7
                norm = np.linalg.norm(u)
                if norm > 0:
                    xi = xi - eta * u / norm  # line 8
                new_ci[i] = new_ci[i] + grad / task.K[i]  # line 10, k = 0..K-1
            displacements.append(x - xi)  # line 11
        K_bar = np.mean([task.K[i] for i in cohort])
        g_bar = np.mean(displacements, axis=0) / (eta * K_bar)  # line 13
        x = x - gamma * g_bar  # line 14
        g = beta * (sum(new_ci[i] - ci[i] for i in cohort) / len(cohort) + c) + (1 - beta) * g  # line 16, c^{t-1}
        c = c + sum(new_ci[i] - ci[i] for i in cohort) / task.N  # line 15
        for i in cohort:
            ci[i] = new_ci[i]
        history.append(x)
    return history
