"""local AdaAlter: Xie et al. 2019; docs/methods.md C6 ("const" is the released code, "k_eps2" is UNCONFIRMED).

B2 is B squared, frozen for the round; b0_sq its initial value. eps_mode: "const" or "k_eps2".
"""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.5, eps: float = 1.0, b0_sq: float = 0.0, eps_mode: str = "const") -> list[np.ndarray]:
    x = np.array(task.x0, dtype=np.float64)
    B2 = np.full_like(x, b0_sq)
    out = []
    for t in range(task.T):
        S = task.cohorts[t]
        eta = lr * task.lr_decay**t
        x_next = np.zeros_like(x)
        B2_next = np.zeros_like(x)
        for i in S:
            y = x.copy()
            A2 = B2.copy()
            for k in range(task.K[i]):
                g = task.grad(i, t, k, y)
                placeholder = eps if eps_mode == "const" else (k + 1) * eps**2
                y = y - eta * g / np.sqrt(B2 + placeholder)
                A2 = A2 + g**2
            x_next += y / len(S)
            B2_next += A2 / len(S)
        x, B2 = x_next, B2_next  # server: average both
        out.append(x.copy())
    return out
