"""MOON: Li, He and Song 2021, "Model-Contrastive Federated Learning", Algorithm 1; with beta1 > 0 MOONM, the slow-momentum
variant named in "GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic Forgetting"
(server: its Algorithm 5, lines 16-17).

Network: z = relu(W1 a + b1) [B, h] is the representation (no projection head: the penultimate features), W2 z + b2 the
output. Parameters: W1 [h, p], b1 [h], W2 [C, h], b2 [C].
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
    relu,
    relu_backward,
    sgd,
)


def features(params: Params, a: Array) -> Array:
    """R_w(x) of the paper."""
    return relu(linear(a, params[0], params[1]))


def unit(z: Array) -> tuple[Array, Array]:
    """Rows of length 1 and their old lengths [B, 1]; a zero row stays zero (docs/methods.md, rule R10)."""
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return z / np.where(norm > 0, norm, 1.0), norm


def contrastive(z: Array, z_glob: Array, z_prev: Array, temperature: float) -> tuple[float, Array]:
    """l_con, the model-contrastive loss, mean over the batch, and its derivative by z; z_glob and z_prev are constants.

    -log(e^p / (e^p + e^n)) = log(1 + e^(n - p)) with p = cos(z, z_glob) / tau and n = cos(z, z_prev) / tau.
    """
    u, norm = unit(z)
    toward, away = unit(z_glob)[0], unit(z_prev)[0]
    pull = (u * toward).sum(axis=1, keepdims=True)
    push = (u * away).sum(axis=1, keepdims=True)
    gap = (push - pull) / temperature  # n - p
    loss = np.logaddexp(0.0, gap).mean()
    d_gap = 1.0 / (1.0 + np.exp(-gap)) / len(z)
    d_cos = (away - push * u) - (toward - pull * u)  # d cos(z, c) / dz = (c / |c| - cos u) / |z|
    return float(loss), d_gap / temperature * d_cos / np.where(norm > 0, norm, np.inf)


def loss_and_grad(
    params: Params, x: Params, prev: Params | None, a: Array, y: Array, mu: float, temperature: float
) -> tuple[float, Params]:
    """l = l_sup + mu l_con at the local model `params`; x is the global model, prev the client's previous local model.

    prev = None: the client never took part, and there is no contrastive term (docs/methods.md#moon).
    """
    _, _, W2, b2 = params
    z = features(params, a)
    loss, d_out = cross_entropy(linear(z, W2, b2), y)  # l_sup
    d_z, d_W2, d_b2 = linear_backward(d_out, z, W2)
    if prev is not None:
        l_con, d_con = contrastive(z, features(x, a), features(prev, a), temperature)
        loss, d_z = loss + mu * l_con, d_z + mu * d_con
    _, d_W1, d_b1 = linear_backward(relu_backward(d_z, z), a, params[0])
    return loss, [d_W1, d_b1, d_W2, d_b2]


def run(
    x0: Sequence[Array],
    batches: Batches,
    cohorts: Cohorts,
    *,
    lr: float = 0.01,
    server_lr: float = 1.0,
    mu: float = 1.0,
    temperature: float = 0.5,
    beta1: float = 0.0,
    weights: Sequence[float] | None = None,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
) -> list[Params]:
    """The global parameters after every round."""
    x = copied(x0)
    m = [np.zeros_like(p) for p in x]
    prev: dict[int, Params] = {}  # w_i^(t-1): the last local model of the clients that took part
    history = []
    for t, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            w = copied(x)  # PartyLocalTraining: w_i^t <- w^t
            for a, y in batches[t][i]:
                _, grads = loss_and_grad(w, x, prev.get(i), a, y, mu, temperature)
                w = sgd(w, grads, lr * lr_decay**t, weight_decay)
            prev[i] = w
            displacements.append([p - q for p, q in zip(x, w, strict=True)])
        delta = average(displacements, cohort, weights)
        m = [beta1 * p + q for p, q in zip(m, delta, strict=True)]  # GradMA Alg. 5, line 16; MOON: m = delta
        x = [p - server_lr * q for p, q in zip(x, m, strict=True)]  # line 17
        history.append(x)
    return history
