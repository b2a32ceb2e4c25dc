"""FedMLB: Kim, Kim and Han 2022, "Multi-Level Branched Regularization for Federated Learning"; with beta1 > 0 FedMLBM, the
slow-momentum variant named in "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic
Forgetting" (server: its Algorithm 5, lines 16-17).

Network: M blocks, relu(Linear) except the last, which is Linear. Parameters: W1, b1, ..., WM, bM. Hybrid path b = 1..M-1:
local blocks 1..b, then the blocks b+1..M of the global model, which are constants.
"""

from collections.abc import Sequence

import numpy as np

from .network import (
    Array,
    Batches,
    Cohorts,
    Params,
    average,
    copied,
    cross_entropy,
    linear,
    linear_backward,
    log_softmax,
    relu,
    relu_backward,
    sgd,
)


def forward(params: Params, h: Array, first: int) -> list[Array]:
    """Outputs of the blocks first..M for the input h of block `first`, with h itself in front; the last is the logits."""
    M = len(params) // 2
    outputs = [h]
    for block in range(first, M + 1):
        o = linear(outputs[-1], params[2 * block - 2], params[2 * block - 1])
        outputs.append(relu(o) if block < M else o)
    return outputs


def backward(params: Params, outputs: list[Array], d: Array, first: int) -> Array:
    """Derivative by the input of block `first`, given d by the logits."""
    M = len(params) // 2
    for block in range(M, first - 1, -1):
        if block < M:
            d = relu_backward(d, outputs[block - first + 1])
        d, _, _ = linear_backward(d, outputs[block - first], params[2 * block - 2])
    return d


def divergence(o_b: Array, o: Array, temperature: float) -> tuple[float, Array, Array]:
    """KL(softmax(o_b / tau) || softmax(o / tau)), mean over the batch, and its derivatives by o_b and by o, both [B, C].

    The hybrid path o_b is the first argument and is not detached; there is no factor tau^2 (docs/methods.md#fedmlb).
    """
    log_p, log_q = log_softmax(o_b / temperature), log_softmax(o / temperature)
    p, q = np.exp(log_p), np.exp(log_q)
    kl = (p * (log_p - log_q)).sum(axis=1, keepdims=True)
    scale = temperature * len(o)
    return float(kl.mean()), p * (log_p - log_q - kl) / scale, (q - p) / scale


def loss_and_grad(
    params: Params, x: Params, a: Array, y: Array, lam1: float, lam2: float, lam3: float, temperature: float
) -> tuple[float, Params]:
    """lam1 CE(main) + lam2 mean_b CE(path b) + lam3 mean_b KL(path b || main) at the local model; x is the global one.

    Eq. 8 of the paper with its lambda_1 = lam2 and lambda_2 = lam3; lam1, from the authors' code, is 1 there.
    """
    M = len(params) // 2
    main = forward(params, a, 1)  # main[b]: output of local block b
    ce, d = cross_entropy(main[M], y)
    loss, d_logits = lam1 * ce, lam1 * d
    d_path = {}  # b -> derivative by main[b] that comes back through the global blocks of path b
    for b in range(1, M):
        path = forward(x, main[b], b + 1)
        ce, d_ce = cross_entropy(path[-1], y)
        kl, d_kl, d_main = divergence(path[-1], main[M], temperature)
        loss += (lam2 * ce + lam3 * kl) / (M - 1)
        d_logits = d_logits + lam3 * d_main / (M - 1)
        d_path[b] = backward(x, path, (lam2 * d_ce + lam3 * d_kl) / (M - 1), b + 1)
    grads: Params = []
    d = d_logits
    for block in range(M, 0, -1):
        if block < M:
            d = relu_backward(d + d_path[block], main[block])
        d, d_W, d_b = linear_backward(d, main[block - 1], params[2 * block - 2])
        grads = [d_W, d_b, *grads]
    return loss, grads


def run(
    x0: Sequence[Array],
    batches: Batches,
    cohorts: Cohorts,
    *,
    lr: float = 0.1,
    server_lr: float = 1.0,
    lam1: float = 1.0,
    lam2: float = 1.0,
    lam3: float = 1.0,
    temperature: float = 1.0,
    beta1: float = 0.0,
    weights: Sequence[float] | None = None,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
) -> list[Params]:
    """The global parameters after every round."""
    x = copied(x0)
    m = [np.zeros_like(p) for p in x]
    history = []
    for t, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            w = copied(x)
            for a, y in batches[t][i]:
                _, grads = loss_and_grad(w, x, a, y, lam1, lam2, lam3, temperature)
                w = sgd(w, grads, lr * lr_decay**t, weight_decay)
            displacements.append([p - q for p, q in zip(x, w, strict=True)])
        delta = average(displacements, cohort, weights)
        m = [beta1 * p + q for p, q in zip(m, delta, strict=True)]  # GradMA Alg. 5, line 16; FedMLB: m = delta
        x = [p - server_lr * q for p, q in zip(x, m, strict=True)]  # line 17
        history.append(x)
    return history
