"""SCAFFOLD, options I and II (Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", Algorithm 1). The listing is not among the five papers; see section D1 of docs/methods.md.
The local direction g - c_i + c agrees with step 7 of Algorithm 1 of "Problem-Parameter Free Federated
Learning" (beta = 1), the update of c with its line 15."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, option: str = "II") -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    c = np.zeros_like(x)  # server state
    ci = [np.zeros_like(x) for _ in range(task.N)]  # client state
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        displacements = []
        new_ci = {}
        for i in cohort:
            xi = x.copy()  # local start
            for k in range(task.K[i]):
                xi = xi - eta * task.clip(task.grad(i, t, k, xi) - ci[i] + c)  # local step
            displacements.append(x - xi)
            if option == "I":  # upload
                new_ci[i] = task.full_grad(i, x)
            elif option == "II":
                new_ci[i] = ci[i] - c + (x - xi) / (task.K[i] * eta)
            else:
                raise ValueError(option)
        x = x - server_lr * np.mean(displacements, axis=0)  # server step
        c = c + sum(new_ci[i] - ci[i] for i in cohort) / task.N
        for i in cohort:
            ci[i] = new_ci[i]
        history.append(x)
    return history
