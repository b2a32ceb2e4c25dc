"""FedAWE (Xiang, Ioannidis, Yeh, Joe-Wong, Su 2024, "Efficient Federated Learning against Heterogeneous and Non-stationary
Client Unavailability", NeurIPS 2024, arXiv 2409.17446).

Written before the method's file, from the abstract and the authors' public loop (without the bound 0.5 that it puts on the
norm of the mean echo). Every client has a model of its own. A client that is there works on it, multiplies its innovation by
the rounds since it was last there (adaptive weighting, "echoing"), and the server averages the models so moved. Only clients
that are there receive the result ("implicit gossiping").
"""

import numpy as np

from .task import Task


def run(task: Task, *, lr: float = 0.1, server_lr: float = 1.0) -> list[np.ndarray]:
    x = task.x0.astype(np.float64)
    own = [x.copy() for _ in range(task.N)]
    tau = [-1] * task.N  # the last round in which client i was there
    history = []
    for t, active in enumerate(task.cohorts):
        eta = lr * task.lr_decay**t
        moved = []
        for i in active:
            xi = own[i].copy()
            for k in range(task.K[i]):
                xi = xi - eta * task.grad(i, t, k, xi)
            G = own[i] - xi
            moved.append(own[i] - server_lr * (t - tau[i]) * G)
        x = sum(moved) / len(moved)
        for i in active:
            own[i] = x.copy()
            tau[i] = t
        history.append(x)
    return history
