"""Delta-SGD (Kim, Toghani, Uribe, Kyrillidis 2024, "Adaptive Federated Learning with Auto-Tuned Clients", ICLR 2024;
arXiv 2306.11201, Algorithm 1). Every client estimates its curvature and sets its step from it, from eta0 on in every
round. The run's decay of the learning rate does not act on eta0."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    eta0: float = 0.2,
    gamma: float = 2.0,
    delta: float = 0.1,
    same_batch: bool = True,
    server_lr: float = 1.0,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    history = []
    for t, cohort in enumerate(task.cohorts):
        displacements = []
        for i in cohort:
            xi = x.copy()
            eta, theta = eta0, 1.0
            x_prev, g_prev = x, np.zeros_like(x)
            for k in range(task.K[i]):
                g = task.grad(i, t, k, xi)
                if k > 0:
                    if same_batch:
                        g_prev = task.grad(i, t, k, x_prev)  # at the old point, on the present batch
                    a = np.sqrt(np.sum((xi - x_prev) ** 2))
                    b = np.sqrt(np.sum((g - g_prev) ** 2))
                    new = np.sqrt(1 + delta * theta) * eta
                    if a > 0 and b > 0:
                        new = min(gamma * a / (2 * b), new)
                    theta, eta = new / eta, new
                x_prev, g_prev = xi, g
                xi = xi - eta * g
            displacements.append(x - xi)
        x = x - server_lr * np.mean(displacements, axis=0)
        history.append(x)
    return history
