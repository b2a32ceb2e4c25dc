"""LocalAdam with a shared second moment, the baseline of "Efficient Federated Learning via Local Adaptive Amended
Optimizer with Linear Speedup": local AMSGrad as in its Algorithm 2 (EMA convention of Algorithm 3), v-hat averaged by
the server."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 1e-3,
    server_lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    v_server = np.full_like(x, eps**2)  # Alg. 3, input: v-hat^0 = eps_v^2
    history = []
    for t, cohort in enumerate(task.cohorts):  # Alg. 2, line 1
        eta = lr * task.lr_decay**t
        models, v_hats = [], []
        for i in cohort:  # line 3
            xi = x.copy()  # line 4
            m = np.zeros_like(x)
            v = v_server.copy()
            v_hat = v_server.copy()
            for k in range(task.K[i]):  # line 5
                g = task.grad(i, t, k, xi)  # line 6
                m = beta1 * m + (1 - beta1) * g  # line 7
                v = beta2 * v + (1 - beta2) * g**2  # line 8
                v_hat = np.maximum(v_hat, v)  # line 9, h = running maximum
                xi = xi - eta * m / np.sqrt(v_hat)  # line 10
            models.append(xi)
            v_hats.append(v_hat)
        x = x - server_lr * (x - np.mean(models, axis=0))  # lines 12-15
        v_server = np.mean(v_hats, axis=0)  # Alg. 3, line 16
        history.append(x)
    return history
