"""FedAdam(*), FedAdam with amended local SGD: "Efficient Federated Learning via Local Adaptive Amended Optimizer with
Linear Speedup", section 5 (words only); docs/methods.md B5. The amendment is the last round's Delta / (eta_l K)."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 0.1,
    alpha: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v0: float | None = None,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    m = np.zeros_like(x)
    v = np.full_like(x, tau**2 if v0 is None else v0)
    g_bar = np.zeros_like(x)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        K_bar = sum(task.K[i] for i in S) / len(S)
        delta = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                y = y - eta * (alpha * task.grad(i, t, k, y) + (1.0 - alpha) * g_bar)
            delta += (x - y) / len(S)
        # FedAdam server step
        m = beta1 * m + (1.0 - beta1) * delta
        v = beta2 * v + (1.0 - beta2) * delta**2
        x = x - server_lr * m / (np.sqrt(v) + tau)
        g_bar = delta / (eta * K_bar)  # local-side average direction
        out.append(x.copy())
    return out
