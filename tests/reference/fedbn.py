"""FedBN: Li, Jiang, Zhang, Kamp and Dou 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", Algorithm 1: every layer is averaged except BatchNorm, which stays with its client.

Network: Linear, BatchNorm, relu, Linear. Parameters: W1 [h, p], b1 [h], gamma [h], beta [h], W2 [C, h], b2 [C].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

GAMMA, BETA = 2, 3  # places of the normalisation parameters
SHARED = (0, 1, 4, 5)
EPS = 1e-5  # torch's BatchNorm
MOMENTUM = 0.1  # torch's: new = 0.9 old + 0.1 batch


@dataclass
class Norm:
    """What stays with a client, all [h]."""

    gamma: Array
    beta: Array
    mean: Array  # running statistics: kept, but not used while training
    var: Array


def batch_statistics(params: Params, a: Array) -> tuple[Array, Array]:
    """Mean and biased variance of the first layer's output over the batch."""
    s = linear(a, params[0], params[1])
    return s.mean(axis=0), s.var(axis=0)


def loss_and_grad(params: Params, a: Array, y: Array) -> tuple[float, Params]:
    W1, b1, gamma, beta, W2, b2 = params
    mean, var = batch_statistics(params, a)
    std = np.sqrt(var + EPS)
    s_hat = (linear(a, W1, b1) - mean) / std
    h = relu(gamma * s_hat + beta)
    loss, d = cross_entropy(linear(h, W2, b2), y)
    d, d_W2, d_b2 = linear_backward(d, h, W2)
    d = relu_backward(d, h)
    d_gamma, d_beta = (d * s_hat).sum(axis=0), d.sum(axis=0)
    d = d * gamma
    d = (d - d.mean(axis=0) - s_hat * (d * s_hat).mean(axis=0)) / std  # mean and variance depend on every row
    _, d_W1, d_b1 = linear_backward(d, a, W1)
    return loss, [d_W1, d_b1, d_gamma, d_beta, d_W2, d_b2]


def rounds(
    x0: Sequence[Array],
    batches: Batches,
    cohorts: Cohorts,
    *,
    lr: float = 0.01,
    server_lr: float = 1.0,
    weights: Sequence[float] | None = None,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
    running: tuple[Array, Array] | None = None,
) -> Iterator[tuple[Params, dict[int, Norm]]]:
    """After every round: the global parameters, and the Norm of each client that has taken part so far.

    `running`: the initial running mean and variance; torch's 0 and 1 if not given.
    """
    x = copied(x0)
    mean0, var0 = copied(running) if running is not None else (np.zeros_like(x[GAMMA]), np.ones_like(x[GAMMA]))
    norms: dict[int, Norm] = {}
    for t, cohort in enumerate(cohorts):
        displacements = []
        for i in cohort:
            own = norms.get(i) or Norm(x[GAMMA], x[BETA], mean0, var0)  # first time: the initial BN (docs/methods.md#fedbn)
            w = [x[0], x[1], own.gamma, own.beta, x[4], x[5]]
            mean, var = own.mean, own.var
            for a, y in batches[t][i]:
                batch_mean, batch_var = batch_statistics(w, a)
                mean = (1 - MOMENTUM) * mean + MOMENTUM * batch_mean
                var = (1 - MOMENTUM) * var + MOMENTUM * batch_var * len(a) / (len(a) - 1)  # unbiased
                _, grads = loss_and_grad(w, a, y)
                w = sgd(w, grads, lr * lr_decay**t, weight_decay)
            norms[i] = Norm(w[GAMMA], w[BETA], mean, var)
            displacements.append([x[j] - w[j] for j in SHARED])
        delta = average(displacements, cohort, weights)
        x = list(x)
        for j, change in zip(SHARED, delta, strict=True):
            x[j] = x[j] - server_lr * change
        yield x, dict(norms)


def run(x0: Sequence[Array], batches: Batches, cohorts: Cohorts, **settings: Any) -> list[Params]:
    """The global parameters after every round (settings: those of `rounds`); gamma and beta stay at x0."""
    return [x for x, _ in rounds(x0, batches, cohorts, **settings)]
