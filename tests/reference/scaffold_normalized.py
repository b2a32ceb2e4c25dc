"""Normalized SCAFFOLD: the ablation of Fig. 5 of "Problem-Parameter Free Federated Learning". Its Algorithm 1 without
momentum (line 7 with beta = 1, no line 16); step sizes of Theorem 1 unless given."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float | None = None, gamma: float | None = None, start: str = "warmup") -> list[np.ndarray]:
    S, K, T = len(task.cohorts[0]), float(np.mean(task.K)), task.T
    lr = 1 / (K * np.sqrt(T)) if lr is None else lr  # Theorem 1
    gamma = (S * K) ** 0.25 / T**0.75 if gamma is None else gamma
    x = task.x0.astype(np.float64)
    ci = [np.zeros_like(x) for _ in range(task.N)]
    if start == "warmup":  # line 1
        for i in range(task.N):
            ci[i] = sum(task.grad(i, -1, k, x) for k in range(task.K[i])) / task.K[i]
    c = sum(ci) / task.N
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 2
        eta = lr * task.lr_decay**t
        displacements = []
        new_ci = {}
        for i in cohort:  # line 4
            xi = x.copy()  # line 5
            total = np.zeros_like(x)
            for k in range(task.K[i]):  # line 6
                g = task.grad(i, t, k, xi)
                total = total + g
                u = g - ci[i] + c  # line 7, beta = 1
                norm = np.linalg.norm(u)
                if norm > 0:
                    xi = xi - eta * u / norm  # line 8
            new_ci[i] = total / task.K[i]  # line 10, gradients k = 0..K-1
            displacements.append(x - xi)
        K_bar = np.mean([task.K[i] for i in cohort])
        x = x - gamma * np.mean(displacements, axis=0) / (eta * K_bar)  # lines 13-14
        c = c + sum(new_ci[i] - ci[i] for i in cohort) / task.N  # line 15
        for i in cohort:
            ci[i] = new_ci[i]
        history.append(x)
    return history
