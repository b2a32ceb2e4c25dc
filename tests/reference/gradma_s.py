"""GradMA-S: Algorithms 8, 3 and 4 of "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated
Catastrophic Forgetting". memory = None means N slots; memory = 0 is FedAvgM (no memory, no projection)."""

import numpy as np

from .qp import project
from .task import Task


def run(
    task: Task,
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    beta1: float = 0.5,
    beta2: float = 0.5,
    memory: int | None = None,
) -> list[np.ndarray]:
    memory = task.N if memory is None else memory
    x = task.x0.astype(np.float64)
    m_tilde = np.zeros_like(x)  # Alg. 8, line 2
    count = [0] * task.N  # line 3
    D: dict[int, np.ndarray] = {}  # line 4
    entered: dict[int, int] = {}  # the round in which an id of D was inserted
    history = []
    for t, cohort in enumerate(task.cohorts):  # line 6
        eta = lr * task.lr_decay**t
        new = set()
        for i in cohort if memory > 0 else []:  # Alg. 4, line 1
            if i not in D:  # line 4
                if len(D) == memory:  # line 5
                    old = [j for j in D if j not in cohort]  # lines 6-11
                    j = min(old, key=lambda j: (count[j], entered[j], j))  # line 12
                    del D[j]  # line 13
                    count[j] = 0
                D[i] = np.zeros_like(x)  # line 16
                entered[i] = t
                new.add(i)  # line 17
            count[i] += 1  # lines 3, 15
        d = {}
        for i in cohort:  # Alg. 8, line 11
            xi = x.copy()  # line 12
            for k in range(task.K[i]):  # line 13
                xi = xi - eta * task.grad(i, t, k, xi)  # line 14
            d[i] = x - xi  # line 16
        m = beta1 * m_tilde + np.mean([d[i] for i in cohort], axis=0)  # Alg. 3, line 1
        for i, value in D.items():  # line 2
            if i in new:
                D[i] = d[i]  # line 4
            elif i in cohort:
                D[i] = beta2 * value + d[i]  # line 4
            else:
                D[i] = beta2 * value  # line 6
        m_tilde = project(m, list(D.values()))  # line 9
        x = x - server_lr * m_tilde
        history.append(x)
    return history
