"""Fed-LAMB: "Fed-LAMB: Layer-wise and Dimension-wise Locally Adaptive Federated Learning", its main listing. Only the
supplement is among the five papers (the layer update is in the proof of its Lemma 1); see section C4
of docs/methods.md."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    lam: float = 0.01,
    first_round: str = "frozen",
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    layers = task.layers or [slice(0, x.size)]
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
                    psi = m / (np.sqrt(v) + eps)
                else:
                    psi = m / np.sqrt(v_hat)
                for layer in layers:
                    u = psi[layer] + lam * xi[layer]
                    norm_u, norm_x = np.linalg.norm(u), np.linalg.norm(xi[layer])
                    phi = norm_x if norm_x > 0 else 1.0  # rule R10
                    if norm_u > 0:
                        xi[layer] = xi[layer] - eta * phi * u / norm_u
            mi[i] = m
            models.append(xi)  # upload
            vs.append(v)
        x = np.mean(models, axis=0)  # server step
        v_hat = np.maximum(v_hat, np.mean(vs, axis=0))
        history.append(x)
    return history
