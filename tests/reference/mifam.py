"""MIFAM: "GradMA" paper, Alg. 6; docs/methods.md G2 (raw displacements, zero start)."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, beta1: float = 0.9) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    g_old = [np.zeros_like(x) for _ in range(task.N)]  # line 2
    d = np.zeros_like(x)
    m = np.zeros_like(x)
    out = []
    for t in range(task.T):
        eta = lr * task.lr_decay**t
        change = np.zeros_like(x)
        for i in task.cohorts[t]:
            y = x.copy()  # line 8
            for k in range(task.K[i]):
                y = y - eta * task.grad(i, t, k, y)  # line 10
            g = x - y  # line 12
            change += g - g_old[i]  # line 13
            g_old[i] = g  # line 14
        d = d + change / task.N  # line 17
        m = beta1 * m + d  # line 17
        x = x - server_lr * m  # line 18
        out.append(x.copy())
    return out
