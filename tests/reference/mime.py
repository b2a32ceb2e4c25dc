"""Mime: Karimireddy et al. 2020, with the U/V table of docs/methods.md E3.

Server statistics s are frozen in the round; locally an SVRG-corrected gradient is used; s is updated from full
gradients at the broadcast model. base: "sgd", "sgdm" (beta) or "adam" (beta1, beta2, eps)."""

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
        c = sum(task.full_grad(i, x) for i in S) / len(S)  # phase 1
        delta = np.zeros_like(x)
        for i in S:  # phase 2
            y = x.copy()
            for k in range(task.K[i]):
                u = task.grad(i, t, k, y) - task.grad(i, t, k, x) + c
                if base == "sgd":
                    step = u
                elif base == "sgdm":
                    step = (1.0 - beta) * u + beta * m
                else:
                    step = ((1.0 - beta1) * u + beta1 * m) / (np.sqrt(v) + eps)
                y = y - eta * step
            delta += (x - y) / len(S)
        x = x - server_lr * delta
        if base == "sgdm":  # s <- V(c, s)
            m = (1.0 - beta) * c + beta * m
        elif base == "adam":
            m = (1.0 - beta1) * c + beta1 * m
            v = (1.0 - beta2) * c**2 + beta2 * v
        out.append(x.copy())
    return out
