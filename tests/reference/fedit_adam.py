"""FedIT-Adam of "Parameter Tracking in Federated Learning with Adaptive Optimization", section 6.3 and Appendix C.

The baseline trains the adapters with local Adam and has no tracking term: in Algorithm 1, g_hat is g (line 11) and the step
is that of line 18. The default step sizes are the row 20NewsGroups of Table C.1.
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
    x = [float(z) for z in task.x0]
    kept = {i: [0.0] * d for i in range(task.N)}  # v_i between rounds
    history = []
    for t, cohort in enumerate(task.cohorts):  # lines 3-4
        eta = lr * task.lr_decay**t
        sums = [0.0] * d
        for i in cohort:  # line 7
            xi, m, v, top = list(x), [0.0] * d, list(kept[i]), list(kept[i])  # line 8
            for k in range(task.K[i]):  # line 9
                g = task.grad(i, t, k, np.array(xi))  # lines 10-11
                for j in range(d):
                    m[j] = beta1 * m[j] + (1 - beta1) * g[j]  # line 13
                    v[j] = beta2 * v[j] + (1 - beta2) * g[j] * g[j]  # line 14
                    top[j] = max(top[j], v[j])  # line 15
                    xi[j] -= eta * m[j] / (top[j] ** 0.5 + eps)  # lines 16, 18
            kept[i] = v  # line 24
            for j in range(d):
                sums[j] += xi[j] - x[j]  # line 26
        x = [x[j] + server_lr * sums[j] / len(cohort) for j in range(d)]  # line 28
        history.append(np.array(x))
    return history
