"""FedSPS: "Problem-Parameter Free Federated Learning", Table 1 (step rule of Mukherjee et al. 2024); docs/methods.md C8.
The step is capped by eta_b, which does not decay; a zero gradient takes the cap."""

import numpy as np

from .task import Task


def run(task: Task, *, c: float = 0.5, eta_b: float = 1.0, l_star: float = 0.0) -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        x_next = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for k in range(task.K[i]):
                F = task.loss(i, t, k, y)  # loss and gradient of the same mini-batch
                g = task.grad(i, t, k, y)
                norm2 = float(g @ g)
                step = eta_b if norm2 == 0.0 else min((F - l_star) / (c * norm2), eta_b)
                y = y - step * g
            x_next += y / len(S)
        x = x_next
        out.append(x.copy())
    return out
