"""FedIT-Adam: the baseline of Section 6.3 of "Parameter Tracking in Federated Learning with Adaptive Optimization".

x is only what is trained and sent: all LoRA matrices A and B. The clients use the Adam of Algorithm 1 without tracking
(y = y_i = 0), the server takes lines 26 and 28. Defaults: 20NewsGroups in Table C.1.
"""

import numpy as np

from .task import Task


def run(
    task: Task,
    *,
    lr: float = 5e-3,
    server_lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    kept_v = np.zeros((task.N, x.size))  # v_i of every client
    history = []
    for t in range(task.T):
        lr_t = lr * task.lr_decay**t
        total = np.zeros_like(x)
        for i in task.cohorts[t]:  # line 7
            w = x.copy()  # line 8
            m = np.zeros_like(x)
            v = kept_v[i].copy()
            top = v.copy()  # v_hat; the listing does not say where it starts, docs/methods.md#fadamgt, decision a: at v_i
            for k in range(task.K[i]):  # line 9
                g = task.grad(i, t, k, w)  # line 10
                m = beta1 * m + (1.0 - beta1) * g  # line 13
                v = beta2 * v + (1.0 - beta2) * g**2  # line 14
                top = np.maximum(top, v)  # line 15
                w = w - lr_t * m / (np.sqrt(top) + eps)  # lines 16, 18
            kept_v[i] = v  # line 24
            total += w - x  # line 26
        x = x + server_lr * total / len(task.cohorts[t])  # line 28
        history.append(x.copy())
    return history
