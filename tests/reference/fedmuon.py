"""FedMuon (Liu et al. 2025, "FedMuon: Accelerating Federated Learning with Matrix Orthogonalization"; arXiv 2510.27403), in
the form of the authors' code. Muon with Nesterov momentum moves parameters with two or more dimensions, AdamW moves the
others, and both take a step along the global direction. The server averages Muon's momentum; AdamW starts anew in every
round. A parameter with more than two dimensions is read as the matrix [first, rest]. `scale="original"` takes the factor
from the last two dimensions of the parameter instead, as the code does."""

import numpy as np

from .task import Task


def newton_schulz(M: np.ndarray, steps: int) -> np.ndarray:
    X = M / (np.sqrt(np.sum(M * M)) + 1e-7)
    tall = X.shape[0] > X.shape[1]
    if tall:
        X = X.T
    for _ in range(steps):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.T if tall else X


def run(
    task: Task,
    *,
    lr: float = 3e-4,
    server_lr: float = 1.0,
    muon_scale: float = 10.0,
    alpha: float = 0.5,
    beta: float = 0.98,
    wd: float = 0.01,
    ns_steps: int = 5,
    scale: str = "matrix",
) -> list[np.ndarray]:
    beta1, beta2, eps = 0.9, 0.95, 1e-10  # of AdamW
    x = task.x0.astype(np.float64)
    D = np.zeros_like(x)  # global direction
    M = np.zeros_like(x)  # mean momentum; only the entries of matrices are used
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements, momenta = [], []
        for i in cohort:
            xi, Mi = x.copy(), M.copy()
            a, b = np.zeros_like(x), np.zeros_like(x)  # AdamW's moments
            for k in range(1, task.K[i] + 1):
                g = task.grad(i, t, k - 1, xi)
                for layer, shape in zip(task.layers, task.shapes, strict=True):
                    w, gl = xi[layer], g[layer]
                    if len(shape) >= 2:
                        Mi[layer] = beta * Mi[layer] + (1 - beta) * gl
                        nesterov = (1 - beta) * gl + beta * Mi[layer]
                        U = newton_schulz(nesterov.reshape(shape[0], -1), ns_steps)
                        rows, columns = shape[-2:] if scale == "original" else U.shape
                        U = U * np.sqrt(max(1.0, rows / columns))
                        mu = eta * muon_scale * (1 - alpha)
                        xi[layer] = (1 - mu * wd) * w - mu * U.reshape(-1)
                    else:
                        a[layer] = beta1 * a[layer] + (1 - beta1) * gl
                        b[layer] = beta2 * b[layer] + (1 - beta2) * gl * gl
                        a_hat = a[layer] / (1 - beta1**k)
                        b_hat = b[layer] / (1 - beta2**k)
                        nu = eta * (1 - alpha)
                        xi[layer] = (1 - nu * wd) * w - nu * a_hat / (np.sqrt(b_hat) + eps)
                xi = xi - eta * alpha * D
            displacements.append(x - xi)
            momenta.append(Mi)
        mean = np.mean(displacements, axis=0)
        K_mean = np.mean([task.K[i] for i in cohort])
        x = x - server_lr * mean
        D = mean / (eta * K_mean)
        M = np.mean(momenta, axis=0)
        history.append(x)
    return history
