"""FedCAMS (Wang, Lin, Chen 2022, "Communication-Efficient Adaptive Federated Learning", ICML 2022, Algorithm 2).

Written before the method's file, from the listing as it is known (docs/methods.md B4 for the server) and the authors' loop
with error feedback: a client sends the scaled sign of its difference plus the error of its last upload, and keeps what the
sign lost. The server is FedAMS's with the mean of what it received.
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
    bias_correction: bool = False,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    d = len(x)
    error = [np.zeros(d) for _ in range(task.N)]
    m, v, v_hat = np.zeros(d), np.zeros(d), np.full(d, eps)
    history = []
    for t, cohort in enumerate(task.cohorts):
        Delta = np.zeros(d)
        for i in cohort:
            xi = x.copy()
            for k in range(task.K[i]):
                xi = xi - lr * task.lr_decay**t * task.grad(i, t, k, xi)
            wanted = xi - x + error[i]
            scale = np.sum(np.abs(wanted)) / d
            sent = np.array([scale if number >= 0 else -scale for number in wanted])
            error[i] = wanted - sent
            Delta = Delta + sent / len(cohort)
        m = beta1 * m + (1 - beta1) * Delta
        v = beta2 * v + (1 - beta2) * Delta**2
        v_hat = np.maximum(np.maximum(v_hat, v), eps)
        c1, c2 = (1 - beta1 ** (t + 1), 1 - beta2 ** (t + 1)) if bias_correction else (1.0, 1.0)
        x = x + server_lr * (m / c1) / np.sqrt(v_hat / c2)
        history.append(x)
    return history
