"""DiLoCo (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", Algorithm 1;
arXiv 2311.08105). Inner optimiser AdamW, whose moments stay at the client; outer optimiser SGD with Nesterov momentum
(buffer as in torch). `state="reset"` starts every round with new moments, `inner="sgd"` takes plain SGD steps."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 4e-4,
    lam: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.95,
    eps: float = 1e-8,
    server_lr: float = 0.7,
    momentum: float = 0.9,
    state: str = "keep",
    inner: str = "adamw",
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    m = np.zeros_like(x)  # outer momentum
    a = [np.zeros_like(x) for _ in range(task.N)]  # Adam's moments and steps of client i
    b = [np.zeros_like(x) for _ in range(task.N)]
    n = [0] * task.N
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        deltas = []
        for i in cohort:
            xi = x.copy()
            if state == "reset":
                a[i], b[i], n[i] = np.zeros_like(x), np.zeros_like(x), 0
            for k in range(task.K[i]):
                g = task.grad(i, t, k, xi)
                if inner == "sgd":
                    xi = xi - eta * g
                    continue
                n[i] += 1
                xi = xi - eta * lam * xi  # decoupled weight decay
                a[i] = beta1 * a[i] + (1 - beta1) * g
                b[i] = beta2 * b[i] + (1 - beta2) * g * g
                a_hat = a[i] / (1 - beta1 ** n[i])
                b_hat = b[i] / (1 - beta2 ** n[i])
                xi = xi - eta * a_hat / (np.sqrt(b_hat) + eps)
            deltas.append(xi - x)
        D = np.mean(deltas, axis=0)
        m = momentum * m + D
        x = x + server_lr * (D + momentum * m)
        history.append(x)
    return history
