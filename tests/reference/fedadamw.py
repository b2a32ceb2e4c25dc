"""FedAdamW (Liu et al. 2026, "FedAdamW: A Communication-Efficient Optimizer with Convergence and Generalization Guarantees
for Federated Large Models", AAAI 2026; arXiv 2510.27486). The first moment starts at zero in every round; the second one
starts at the mean that the server has for each parameter tensor. `steps` counts the local steps since the first round."""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 3e-4,
    server_lr: float = 1.0,
    alpha: float = 0.5,
    lam: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    layers = task.layers or [slice(0, x.size)]
    v_bar = [0.0] * len(layers)  # one number per parameter tensor
    delta_G = np.zeros_like(x)  # global direction
    steps = 0.0
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        v_sum = [0.0] * len(layers)
        for i in cohort:
            xi, m, v = x.copy(), np.zeros_like(x), np.zeros_like(x)
            for number, layer in enumerate(layers):
                v[layer] = v_bar[number]
            for k in range(1, task.K[i] + 1):
                g = task.grad(i, t, k - 1, xi)
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g * g
                m_hat = m / (1 - beta1**k)
                v_hat = v / (1 - beta2 ** (steps + k))
                xi = xi - eta * (m_hat / (np.sqrt(v_hat) + eps) + alpha * delta_G + lam * xi)
            for number, layer in enumerate(layers):
                v_sum[number] += np.mean(v[layer])
            displacements.append(x - xi)
        mean = np.mean(displacements, axis=0)
        K_mean = np.mean([task.K[i] for i in cohort])
        x = x - server_lr * mean
        delta_G = mean / (eta * K_mean)
        v_bar = [total / len(cohort) for total in v_sum]
        steps += K_mean
        history.append(x)
    return history
