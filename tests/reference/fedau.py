"""FedAU (Wang, Ji 2024, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging", ICLR
2024): a client's weight is the mean of its participation intervals so far. Every client is visited in every round, as in
the listing and in the authors' code; an interval ends when the client takes part or when it is `cutoff` rounds long."""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0, cutoff: float = 50) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    absent = [0] * task.N  # rounds since the last interval ended
    intervals: list[list[int]] = [[] for _ in range(task.N)]
    history = []
    for t, cohort in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        step = np.zeros_like(x)
        for i in range(task.N):
            if i in cohort:
                xi = x.copy()
                for k in range(task.K[i]):
                    xi = xi - eta * task.grad(i, t, k, xi)
                weight = sum(intervals[i]) / len(intervals[i]) if intervals[i] else 1.0
                step = step + weight * (xi - x) / task.N
                intervals[i].append(absent[i] + 1)  # after its use: the weight knows earlier rounds only
                absent[i] = 0
            else:
                absent[i] += 1
                if absent[i] >= cutoff:
                    intervals[i].append(absent[i])
                    absent[i] = 0
        x = x + server_lr * step
        history.append(x)
    return history
