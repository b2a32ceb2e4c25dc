"""PAdaMFed-VR: Algorithm 2 of "Problem-Parameter Free Federated Learning", step sizes of Theorem 2 unless given.
variant "proof": g^t is the mean of the local directions, as used in C.1 and C.2; "listing": line 16 as printed."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float | None = None,
    gamma: float | None = None,
    beta: float | None = None,
    variant: str = "proof",
    start: str = "warmup",
) -> list[np.ndarray]:
    S, K, T = len(task.cohorts[0]), float(np.mean(task.K)), task.T
    lr = 1 / (K * T) if lr is None else lr  # Theorem 2
    gamma = (S * K) ** (1 / 3) / T ** (2 / 3) if gamma is None else gamma
    beta = min(1.0, (S * K) ** (1 / 3) / T ** (2 / 3)) if beta is None else beta
    x = task.x0.astype(np.float64)
    x_old = x.copy()  # line 1, theta^{-1} = theta^0
    ci = [np.zeros_like(x) for _ in range(task.N)]
    if start == "warmup":  # line 1
        for i in range(task.N):
            ci[i] = sum(task.grad(i, -1, k, x) for k in range(task.K[i])) / task.K[i]
    c = sum(ci) / task.N
    g = c.copy()
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 2
        eta = lr * task.lr_decay**t
        displacements, means = [], []
        new_ci = {}
        for i in cohort:  # line 4
            xi = x.copy()  # line 5
            new_ci[i] = np.zeros_like(x)
            u_mean = np.zeros_like(x)
            for k in range(task.K[i]):  # line 6
                grad = task.grad(i, t, k, xi)
                u = grad + beta * (c - ci[i]) + (1 - beta) * (g - task.grad(i, t, k, x_old))  # line 7
                norm = np.linalg.norm(u)
                if norm > 0:
                    xi = xi - eta * u / norm  # line 8
                new_ci[i] = new_ci[i] + grad / task.K[i]  # line 9
                u_mean = u_mean + u / task.K[i]
            displacements.append(x - xi)  # line 11
            means.append(u_mean)
        K_bar = np.mean([task.K[i] for i in cohort])
        x_old = x
        x = x - gamma * np.mean(displacements, axis=0) / (eta * K_bar)  # lines 13-14
        if variant == "proof":
            g = np.mean(means, axis=0)  # C.2: g^t = (1/SK) sum of g_i^{t,k}
        else:
            g = beta * (sum(new_ci[i] - ci[i] for i in cohort) / len(cohort) + c) + (1 - beta) * g  # line 16
        c = c + sum(new_ci[i] - ci[i] for i in cohort) / task.N  # line 15
        for i in cohort:
            ci[i] = new_ci[i]
        history.append(x)
    return history
