"""FedLADA: Algorithm 3 of "Efficient Federated Learning via Local Adaptive Amended Optimizer with Linear Speedup".
K steps (line 6 prints 1..K-1), v_{i,0} = v^t (never set in the listing)."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 1e-3,
    server_lr: float = 1.0,
    alpha: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    g_a = np.zeros_like(x)  # input
    v = np.full_like(x, eps**2)
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 1
        eta = lr * task.lr_decay**t
        displacements, v_hats = [], []
        for i in cohort:  # line 3
            xi, m, vi, v_hat = x.copy(), np.zeros_like(x), v.copy(), v.copy()  # lines 4-5
            for k in range(task.K[i]):  # line 6
                g = task.grad(i, t, k, xi)  # line 7
                m = beta1 * m + (1 - beta1) * g  # line 8
                vi = beta2 * vi + (1 - beta2) * g * g  # line 9
                v_hat = np.maximum(vi, v_hat)  # line 10
                theta = 1 / np.sqrt(v_hat)  # line 11
                xi = xi - eta * (alpha * m * theta + (1 - alpha) * g_a)  # line 12
            displacements.append(x - xi)  # line 14
            v_hats.append(v_hat)
        v = np.mean(v_hats, axis=0)  # line 16
        delta = np.mean(displacements, axis=0)
        x = x - server_lr * delta  # line 17
        K_bar = np.mean([task.K[i] for i in cohort])
        g_a = delta / (eta * K_bar)  # line 18, (x^t - x^{t+1}) / (eta_g eta_l K)
        history.append(x)
    return history
