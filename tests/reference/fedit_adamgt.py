"""FedIT-AdamGT of "Parameter Tracking in Federated Learning with Adaptive Optimization": Algorithm 1 (GT) on the adapters.

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
            seen = [0.0] * d
            for k in range(K):  # line 9
                g = task.grad(i, t, k, np.array(xi))  # line 10
                for j in range(d):
                    seen[j] += g[j]
                    turned = g[j] + y[j] - track[i][j]  # line 12
                    m[j] = beta1 * m[j] + (1 - beta1) * turned  # line 13
                    v[j] = beta2 * v[j] + (1 - beta2) * turned * turned  # line 14
                    top[j] = max(top[j], v[j])  # line 15
                    xi[j] -= eta * m[j] / (top[j] ** 0.5 + eps)  # lines 16, 18
            kept[i] = v  # line 24
            for j in range(d):
                new = seen[j] / K  # line 22, the gradients as they came
                tracked[j] += new - track[i][j]
                track[i][j] = new
                moved[j] += xi[j] - x[j]  # line 26
        x = [x[j] + server_lr * moved[j] / len(cohort) for j in range(d)]  # line 28
        y = [y[j] + tracked[j] / task.N for j in range(d)]  # line 29
        history.append(np.array(x))
    return history
