"""FedIT-AdamET of "Parameter Tracking in Federated Learning with Adaptive Optimization": Algorithm 1 (ET) on the adapters.

Section 6.3: all participants track, Y = S. The default step sizes are the row 20NewsGroups of Table C.1.
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
    d = len(task.x0)
    x, y = [float(z) for z in task.x0], [0.0] * d
    kept = {i: [0.0] * d for i in range(task.N)}  # v_i between rounds
    track = {i: [0.0] * d for i in range(task.N)}  # y_i
    history = []
    for t, cohort in enumerate(task.cohorts):  # lines 3-6
        eta = lr * task.lr_decay**t
        moved, tracked = [0.0] * d, [0.0] * d
        for i in cohort:  # line 7
            K = task.K[i]
            xi, m, v, top = list(x), [0.0] * d, list(kept[i]), list(kept[i])  # line 8
            for k in range(K):  # line 9
                g = task.grad(i, t, k, np.array(xi))  # lines 10-11
                for j in range(d):
                    m[j] = beta1 * m[j] + (1 - beta1) * g[j]  # line 13
                    v[j] = beta2 * v[j] + (1 - beta2) * g[j] * g[j]  # line 14
                    top[j] = max(top[j], v[j])  # line 15
                    delta = m[j] / (top[j] ** 0.5 + eps)  # line 16
                    xi[j] -= eta * (delta + y[j] - track[i][j])  # line 17
            kept[i] = v  # line 24
            for j in range(d):
                new = track[i][j] - y[j] + (x[j] - xi[j]) / (K * eta)  # line 21
                tracked[j] += new - track[i][j]
                track[i][j] = new
                moved[j] += xi[j] - x[j]  # line 26
        x = [x[j] + server_lr * moved[j] / len(cohort) for j in range(d)]  # line 28
        y = [y[j] + tracked[j] / task.N for j in range(d)]  # line 29
        history.append(np.array(x))
    return history
