"""Fed-AMS (Chen et al. 2020), local AMSGrad as described in A.1 of the supplement of "Fed-LAMB: Layer-wise and
Dimension-wise Locally Adaptive Federated Learning". Its listing is not among the five papers; see section C2 of
docs/methods.md."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 1e-3,
    server_lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    first_round: str = "local_v",
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    v_hat = np.full_like(x, eps)  # server state
    mi = [np.zeros_like(x) for _ in range(task.N)]  # client state
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        models, vs = [], []
        for i in cohort:
            xi, m, v = x.copy(), mi[i], v_hat.copy()  # local start
            for k in range(task.K[i]):
                g = task.grad(i, t, k, xi)  # local step
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g**2
                if t == 0 and first_round == "local_v":
                    xi = xi - eta * m / (np.sqrt(v) + eps)
                else:
                    xi = xi - eta * m / np.sqrt(v_hat)  # frozen in the round
            mi[i] = m
            models.append(xi)  # upload
            vs.append(v)
        x = x - server_lr * (x - np.mean(models, axis=0))  # server step
        v_hat = np.maximum(v_hat, np.mean(vs, axis=0))
        history.append(x)
    return history
