"""FADAS (Wang, Wang, Lu, Chen 2024, "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024).

Written before the method's file, from a transcription of Algorithm 1 and 2 (zij, docs/math/fadas) and from the lines of the
authors' code that cut the step. The server takes the plain mean of the buffer's differences, each from the model of its own
start, and makes AMSGrad's step with it. If the largest delay of the buffer is above tau_c, the step is cut.
"""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
    v0: float = 0.0,
    tau_c: float = 1,
    cut: str = "divide",
    bias_correction: bool = False,
) -> list[np.ndarray]:
    models = [task.x0.astype(np.float64)]  # models[t]: the global model before server step t
    m = np.zeros_like(task.x0)
    v = np.zeros_like(task.x0)
    v_hat = np.full_like(task.x0, v0)
    for t, buffer in enumerate(task.cohorts):
        started = task.started[t] if task.started else [t] * len(buffer)
        Delta = np.zeros_like(task.x0)
        for i, start in zip(buffer, started, strict=True):
            x = models[start].copy()
            for k in range(task.K[i]):
                x = x - lr * task.lr_decay**start * task.grad(i, start, k, x)
            Delta = Delta + (x - models[start]) / len(buffer)
        m = beta1 * m + (1 - beta1) * Delta
        v = beta2 * v + (1 - beta2) * Delta * Delta
        v_hat = np.maximum(v_hat, v)
        tau_max = max(t - start for start in started)
        eta = server_lr
        if tau_max > tau_c:
            eta = server_lr / tau_max if cut == "divide" else min(server_lr, 1 / tau_max)
        c1, c2 = (1 - beta1 ** (t + 1), 1 - beta2 ** (t + 1)) if bias_correction else (1.0, 1.0)
        models.append(models[-1] + eta * (m / c1) / (np.sqrt(v_hat / c2) + eps))
    return models[1:]
