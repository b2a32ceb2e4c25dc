"""Mime-LAMB: "Fed-LAMB: Layer-wise and Dimension-wise Locally Adaptive Federated Learning", the steps of Mime-LAMB in
its listing. Only the supplement is among the five papers; see section C5 of docs/methods.md."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    lam: float = 0.01,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    layers = task.layers or [slice(0, x.size)]
    v = np.zeros_like(x)  # server state
    v_hat = np.full_like(x, eps)
    mi = [np.zeros_like(x) for _ in range(task.N)]  # client state
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        models, full = [], []
        for i in cohort:
            xi, m = x.copy(), mi[i]  # local start
            for k in range(task.K[i]):
                g = task.grad(i, t, k, xi)  # local step
                m = beta1 * m + (1 - beta1) * g
                psi = m / np.sqrt(v_hat)
                for layer in layers:
                    u = psi[layer] + lam * xi[layer]
                    norm_u, norm_x = np.linalg.norm(u), np.linalg.norm(xi[layer])
                    phi = norm_x if norm_x > 0 else 1.0  # rule R10
                    if norm_u > 0:
                        xi[layer] = xi[layer] - eta * phi * u / norm_u
            mi[i] = m
            models.append(xi)  # upload
            full.append(task.full_grad(i, x))  # at the broadcast model
        x = np.mean(models, axis=0)  # server step
        v = beta2 * v + (1 - beta2) * np.mean(full, axis=0) ** 2
        v_hat = np.maximum(v_hat, v)
        history.append(x)
    return history
