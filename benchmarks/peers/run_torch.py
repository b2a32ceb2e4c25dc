"""torch.optim: its optimizers as the server's step on the negative mean displacement, or as the clients' own step.

Bias correction of Adam is switched off where fedkeel has none, by a step count so large that it is 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from problem import PARTIAL, SIZES, Batch, Problem, gradient, serve, sgd
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

LR = 0.1
LATE = 1e9


def server(p: Problem, make: Callable[[torch.Tensor], Optimizer]) -> list[np.ndarray]:
    """Clients of FedAvg; the optimizer takes the negative mean displacement for a gradient."""
    x = torch.tensor(p.x0, requires_grad=True)
    optimizer, seen = make(x), []
    for t, ids in enumerate(PARTIAL):
        start = x.detach().numpy().copy()
        x.grad = torch.as_tensor(start - np.mean([sgd(start, p.batches(t, i), LR) for i in ids], axis=0))
        optimizer.step()
        seen.append(x.detach().numpy().copy())
    return seen


def adam(x: torch.Tensor, *, count: float, v0: float = 0.0, v_hat: float | None = None, lr: float = 0.1, eps: float) -> Adam:
    """Adam (AMSGrad if v_hat is given) whose state is set before its first step."""
    optimizer = Adam([x], lr=lr, betas=(0.8, 0.9), eps=eps, amsgrad=v_hat is not None)
    state = {"step": torch.tensor(count), "exp_avg": torch.zeros_like(x), "exp_avg_sq": torch.full_like(x, v0)}
    optimizer.state[x] = state | ({} if v_hat is None else {"max_exp_avg_sq": torch.full_like(x, v_hat)})
    return optimizer


def steps(w: torch.Tensor, optimizer: Optimizer, batches: list[Batch]) -> None:
    for batch in batches:
        w.grad = torch.as_tensor(gradient(w.detach().numpy(), batch))
        optimizer.step()


def one_client(p: Problem, make: Callable[[torch.Tensor], Optimizer]) -> list[np.ndarray]:
    """Client 2 alone, with a new optimizer in every round."""
    w, seen = torch.tensor(p.x0, requires_grad=True), []
    for t in range(len(PARTIAL)):
        steps(w, make(w), p.batches(t, 2))
        seen.append(w.detach().numpy().copy())
    return seen


def local_adam(p: Problem) -> list[np.ndarray]:
    """Every client has a separate AMSGrad: m starts at 0 in every round, the second moment stays with the client."""
    x, second, seen = p.x0, {}, []
    for t, ids in enumerate(PARTIAL):
        results = []
        for i in ids:
            w = torch.tensor(x, requires_grad=True)
            optimizer = adam(w, count=LATE, v_hat=0.0, lr=0.02, eps=1e-8)
            v = second.get(i, torch.zeros_like(w))
            optimizer.state[w].update(exp_avg_sq=v.clone(), max_exp_avg_sq=v.clone())
            steps(w, optimizer, p.batches(t, i))
            second[i] = optimizer.state[w]["exp_avg_sq"]
            results.append(w.detach().numpy())
        x = np.mean(results, axis=0)
        seen.append(x)
    return seen


def diloco(p: Problem) -> list[np.ndarray]:
    """Every client has an AdamW that lives through the rounds. The server has SGD with Nesterov momentum."""
    x = torch.tensor(p.x0, requires_grad=True)
    outer, seen = SGD([x], lr=0.7, momentum=0.9, nesterov=True), []
    local = [torch.tensor(p.x0, requires_grad=True) for _ in SIZES]
    inner = [AdamW([w], lr=0.02, betas=(0.9, 0.95), weight_decay=0.1) for w in local]
    for t, ids in enumerate(PARTIAL):
        for i in ids:
            local[i].data.copy_(x.data)
            steps(local[i], inner[i], p.batches(t, i))
        x.grad = x.detach() - torch.stack([local[i].detach() for i in ids]).mean(0)
        outer.step()
        seen.append(x.detach().numpy().copy())
    return seen


serve(
    {
        "diloco": diloco,
        "fedavg": lambda p: one_client(p, lambda w: SGD([w], lr=LR)),
        "slowmo": lambda p: one_client(p, lambda w: SGD([w], lr=LR, momentum=0.7)),
        "fedavgm": lambda p: server(p, lambda x: SGD([x], lr=0.7, momentum=0.6)),
        "fedadagrad": lambda p: server(p, lambda x: Adagrad([x], lr=0.2, eps=0.01, initial_accumulator_value=0.0001)),
        "fedadam": lambda p: server(p, lambda x: adam(x, count=LATE, v0=0.0001, eps=0.01)),
        "fedams": lambda p: server(p, lambda x: adam(x, count=LATE, v_hat=1e-3, eps=0.0)),
        "fedams corrected": lambda p: server(p, lambda x: adam(x, count=0.0, v_hat=1e-3, eps=0.0)),
        "local-adam": local_adam,
    }
)
