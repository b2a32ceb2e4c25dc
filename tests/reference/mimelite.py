"""MimeLite: Karimireddy et al. 2020 (Mime without the SVRG correction), U/V table of docs/methods.md E3, E4.

base: "sgd", "sgdm" (beta) or "adam" (beta1, beta2, eps)."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    base: str = "sgdm",
    beta: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-7,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)
    S0 = task.cohorts[0]
    v = (sum(task.full_grad(i, x) for i in S0) / len(S0)) ** 2  # one statistics pass (Adam only)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        delta = np.zeros_like(x)
        full = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                g = task.grad(i, t, k, y)
                if base == "sgd":
                    step = g
                elif base == "sgdm":
                    step = (1.0 - beta) * g + beta * m
                else:
                    step = ((1.0 - beta1) * g + beta1 * m) / (np.sqrt(v) + eps)
                y = y - eta * step
            delta += (x - y) / len(S)
            full += task.full_grad(i, x) / len(S)
        x = x - server_lr * delta
        if base == "sgdm":  # s <- V(mean full gradient, s)
            m = (1.0 - beta) * full + beta * m
        elif base == "adam":
            m = (1.0 - beta1) * full + beta1 * m
            v = (1.0 - beta2) * full**2 + beta2 * v
        out.append(x.copy())
    return out
