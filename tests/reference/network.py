"""What the references with a network share: layers, losses and their derivatives by hand, and the server's average.

Arrays are float64. B is the batch size, C the number of classes. A Linear layer is W [out, in], b [out], as in torch.
Parameters are lists in the order of `model.parameters()`; `flat` joins them as the global vector of a run.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Array = np.ndarray
Params = list[Array]
Batch = tuple[Array, Array]  # inputs [B, p], targets [B] (integers)
Batches = Sequence[Mapping[int, Sequence[Batch]] | Sequence[Sequence[Batch]]]  # batches[t][i][k]: round, client id, step
Cohorts = Sequence[Sequence[int]]  # client ids of every round


def linear(a: Array, W: Array, b: Array) -> Array:
    """[B, in] -> [B, out]"""
    return a @ W.T + b


def linear_backward(d: Array, a: Array, W: Array) -> tuple[Array, Array, Array]:
    """d [B, out] is the derivative by the output; returns those by the input a, by W and by b."""
    return d @ W, d.T @ a, d.sum(axis=0)


def relu(a: Array) -> Array:
    return np.maximum(a, 0.0)


def relu_backward(d: Array, out: Array) -> Array:
    """out = relu(a); the derivative at a = 0 is 0, as in torch."""
    return d * (out > 0)


def log_softmax(o: Array) -> Array:
    shifted = o - o.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(o: Array, y: Array) -> tuple[float, Array]:
    """Mean of -log softmax(o)[y] over the batch, and its derivative by the logits o [B, C]."""
    rows = np.arange(len(y))
    log_q = log_softmax(o)
    d = np.exp(log_q)
    d[rows, y] -= 1.0
    return float(-log_q[rows, y].mean()), d / len(y)


def copied(params: Sequence[Array]) -> Params:
    return [np.array(p, dtype=np.float64) for p in params]


def sgd(params: Params, grads: Params, lr: float, weight_decay: float) -> Params:
    """One step; L2 decay is added to the gradient first (docs/methods.md, rule R5)."""
    return [p - lr * (g + weight_decay * p) for p, g in zip(params, grads, strict=True)]


def average(items: Sequence[Params], cohort: Sequence[int], weights: Sequence[float] | None) -> Params:
    """Mean over the cohort: 1/S each, or in proportion to weights[i] of the client ids (docs/methods.md, rule R1)."""
    p = np.array([1.0 if weights is None else weights[i] for i in cohort], dtype=np.float64)
    p /= p.sum()
    return [sum(p_i * a for p_i, a in zip(p, arrays, strict=True)) for arrays in zip(*items, strict=True)]


def flat(params: Sequence[Array]) -> Array:
    """[d]"""
    return np.concatenate([np.ravel(p) for p in params])
