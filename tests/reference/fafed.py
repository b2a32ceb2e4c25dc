"""FAFED: Wu et al. 2023, as public copies of the code have it; docs/methods.md C9. Full participation.

x_prev_first is what a client compares with in its very first step: "init" = x_0 (the code; m_0 was taken there) or
"broadcast" = x_1 = x_0 - lr m_0.
"""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 1e-3,
    a: float = 0.1,
    beta: float = 0.999,
    rho: float = 1e-2,
    x_prev_first: str = "init",
) -> list[np.ndarray]:
    x0 = np.array(task.x0, dtype=np.float64)
    # initial pass: one batch of every client at x_0
    m, v = np.zeros_like(x0), np.zeros_like(x0)
    for i in range(task.N):
        g = task.grad(i, -1, 0, x0)
        m += g / task.N
        v += g**2 / task.N
    x = x0 - lr * m  # not preconditioned
    x_prev = [x0.copy() if x_prev_first == "init" else x.copy() for _ in range(task.N)]
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        H = np.sqrt(v) + rho  # shared, frozen for the round
        x_next, m_next, v_next = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
        for i in S:
            y, m_i, v_i = x.copy(), m.copy(), v.copy()
            for k in range(task.K[i]):
                g = task.grad(i, t, k, y)
                g_old = task.grad(i, t, k, x_prev[i])  # same batch; across a sync: the last pre-sync iterate
                m_i = g + (1.0 - a) * (m_i - g_old)
                v_i = beta * v_i + (1.0 - beta) * g**2
                x_prev[i] = y.copy()
                y = y - eta * m_i / H
            x_next += y / len(S)
            m_next += m_i / len(S)
            v_next += v_i / len(S)
        x, m, v = x_next, m_next, v_next
        out.append(x.copy())
    return out
