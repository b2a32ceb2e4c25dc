"""FedAMS: Wang et al. 2022 ("Communication-Efficient Adaptive Federated Learning"); authors' code; docs/methods.md B4.

Max stabilisation: v_hat <- max(v_hat, v, eps), denominator sqrt(v_hat). `amsgrad` is option 2 (v_hat starts at 0,
denominator sqrt(v_hat) + eps). `bias_correction` divides as the authors' code does.
"""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.01,
    server_lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    amsgrad: bool = False,
    bias_correction: bool = False,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)
    v = np.zeros_like(x)
    v_hat = np.full_like(x, 0.0 if amsgrad else eps)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        delta = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                y = y - eta * task.grad(i, t, k, y)
            delta += (x - y) / len(S)
        m = beta1 * m + (1.0 - beta1) * delta
        v = beta2 * v + (1.0 - beta2) * delta**2
        v_hat = np.maximum(v_hat, v)
        if not amsgrad:
            v_hat = np.maximum(v_hat, eps)
        c1 = 1.0 - beta1 ** (t + 1) if bias_correction else 1.0
        c2 = 1.0 - beta2 ** (t + 1) if bias_correction else 1.0
        denominator = np.sqrt(v_hat) / np.sqrt(c2) + (eps if amsgrad else 0.0)
        x = x - server_lr * (m / c1) / denominator
        out.append(x.copy())
    return out
