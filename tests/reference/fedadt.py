"""FedADT: docs/methods.md C7. UNCONFIRMED: the update is assumed from the abstract of Gao et al. 2023 (Sensors 23, 6034):
an adaptive local step plus a moving average of gradient differences. All moments restart every round."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 1e-3,
    server_lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    beta_d: float = 0.9,
    lam_d: float = 0.1,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        delta = np.zeros_like(x)
        for i in S:
            y = x.copy()
            m, v, D = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
            g_prev = None
            for k in range(task.K[i]):
                g = task.grad(i, t, k, y)
                if g_prev is None:
                    g_prev = g  # first difference is zero
                m = beta1 * m + (1.0 - beta1) * g
                v = beta2 * v + (1.0 - beta2) * g**2
                D = beta_d * D + (1.0 - beta_d) * (g - g_prev)
                y = y - eta * (m + lam_d * D) / (np.sqrt(v) + eps)
                g_prev = g
            delta += (x - y) / len(S)
        x = x - server_lr * delta
        out.append(x.copy())
    return out
