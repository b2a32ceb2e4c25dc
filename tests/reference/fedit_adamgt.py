"""FedIT-AdamGT: Section 6.3 and Algorithm 1 (FAdamGT lines) of "Parameter Tracking in Federated Learning with Adaptive
Optimization", on the LoRA matrices only. Every participant refreshes its tracking term (Y = S) unless the task says
otherwise. Defaults: 20NewsGroups in Table C.1.
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
    y = np.zeros_like(x)
    own_y = np.zeros((task.N, x.size))  # y_i of every client
    kept_v = np.zeros((task.N, x.size))  # v_i of every client
    history = []
    for t in range(task.T):
        lr_t = lr * task.lr_decay**t
        trackers = task.tracking[t] if task.tracking else task.cohorts[t]  # line 5
        total = np.zeros_like(x)
        total_y = np.zeros_like(x)
        for i in task.cohorts[t]:  # line 7
            w = x.copy()  # line 8
            m = np.zeros_like(x)
            v = kept_v[i].copy()
            top = v.copy()  # v_hat; docs/methods.md#fadamgt, decision a
            sum_g = np.zeros_like(x)
            for k in range(task.K[i]):  # line 9
                g = task.grad(i, t, k, w)  # line 10
                sum_g += g
                g_hat = g + y - own_y[i]  # line 12
                m = beta1 * m + (1.0 - beta1) * g_hat  # line 13
                v = beta2 * v + (1.0 - beta2) * g_hat**2  # line 14
                top = np.maximum(top, v)  # line 15
                w = w - lr_t * m / (np.sqrt(top) + eps)  # lines 16, 18
            if i in trackers:  # line 20
                new = sum_g / task.K[i]  # line 22, without the correction
                total_y += new - own_y[i]
                own_y[i] = new
            kept_v[i] = v  # line 24
            total += w - x  # line 26
        x = x + server_lr * total / len(task.cohorts[t])  # line 28
        y = y + total_y / task.N  # line 29
        history.append(x.copy())
    return history
