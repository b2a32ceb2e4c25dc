"""Rules of peers that differ from fedkeel's, written with numpy from the peer's source.

A difference is explained only if the rule here gives the peer's weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from problem import EQUAL_STEPS, FULL, PARTIAL, SIZES, Problem, gradient, sgd

LR = 0.1
N = len(SIZES)
Weights = list[np.ndarray]


def displacements(p: Problem, t: int, ids: list[int], x: np.ndarray) -> np.ndarray:
    """Of plain local SGD, [S, d]."""
    return np.stack([sgd(x, p.batches(t, i), LR) - x for i in ids])


def server_rule(p: Problem, kind: str, rule: Callable[[int, np.ndarray, np.ndarray], np.ndarray]) -> Weights:
    """FedAvg's clients, and x <- rule(t, x, mean displacement)."""
    x, seen = p.x0, []
    for t, ids in enumerate(PARTIAL):
        x = rule(t, x, p.weights(ids, kind) @ displacements(p, t, ids, x))
        seen.append(x)
    return seen


def adam_rule(step: Callable[[int, np.ndarray, np.ndarray], np.ndarray], scale: float = 1.0) -> Callable[..., np.ndarray]:
    """m and v from 0 with betas 0.8 and 0.9 on scale * the displacement; `step` makes a displacement of (t, m, v)."""
    state = {"m": 0.0, "v": 0.0}

    def rule(t: int, x: np.ndarray, dx: np.ndarray) -> np.ndarray:
        state["m"] = 0.8 * state["m"] + 0.2 * scale * dx
        state["v"] = 0.9 * state["v"] + 0.1 * (scale * dx) ** 2
        return x + step(t, state["m"], state["v"])

    return rule


def flower_fedadam(p: Problem) -> Weights:
    """Bias correction of the learning rate with the exponent round + 1, the first round being 1."""

    def step(t: int, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        return 0.1 * np.sqrt(1 - 0.9 ** (t + 2)) / (1 - 0.8 ** (t + 2)) * m / (np.sqrt(v) + 0.01)

    return server_rule(p, "samples", adam_rule(step))


def optax_fedadam(p: Problem) -> Weights:
    """Adam's own bias correction of both moments."""

    def step(t: int, m: np.ndarray, v: np.ndarray) -> np.ndarray:
        return 0.1 * m / (1 - 0.8 ** (t + 1)) / (np.sqrt(v / (1 - 0.9 ** (t + 1))) + 0.01)

    return server_rule(p, "samples", adam_rule(step))


def optax_mime_adam(p: Problem) -> Weights:
    """v from 0, bias correction in every step, local steps too. Each round counts its steps from the start."""
    x, m, v, seen = p.x0, np.zeros_like(p.x0), np.zeros_like(p.x0), []
    for t, ids in enumerate(PARTIAL):
        q = p.weights(ids)
        c = q @ np.stack([p.full_gradient(i, x) for i in ids])
        results = []
        for i in ids:
            w = x
            for batch in p.batches(t, i):
                u = gradient(w, batch) - gradient(x, batch) + c
                first = (0.8 * m + 0.2 * u) / (1 - 0.8 ** (t + 1))
                w = w - 0.02 * first / (np.sqrt((0.9 * v + 0.1 * u**2) / (1 - 0.9 ** (t + 1))) + 0.01)
            results.append(w)
        x = x + 0.9 * (q @ np.stack(results) - x)
        m, v = 0.8 * m + 0.2 * c, 0.9 * v + 0.1 * c**2
        seen.append(x)
    return seen


def fluke_fedavgm(p: Problem) -> Weights:
    """The first round only makes a momentum of 0: it neither moves the model nor is remembered."""
    state = {"m": 0.0}

    def rule(t: int, x: np.ndarray, dx: np.ndarray) -> np.ndarray:
        state["m"] = 0.9 * state["m"] + dx if t else np.zeros_like(dx)
        return x + state["m"]

    return server_rule(p, "uniform", rule)


def fluke_fedadam(p: Problem) -> Weights:
    """The learning rate also shrinks the displacement that the moments see."""
    return server_rule(p, "uniform", adam_rule(lambda t, m, v: 0.1 * m / (np.sqrt(v) + 0.01), scale=0.1))


def fluke_fednova(p: Problem, momentum: float = 0.0, kind: str = "samples") -> Weights:
    """The weights p_i tau / a_i, whose sum is not 1, are put on the models and not on the displacements."""
    x, seen = p.x0, []
    for t, ids in enumerate(PARTIAL):
        models, a = [], []
        for i in ids:
            w, u, q, total = x, 0.0, 0.0, 0.0
            for batch in p.batches(t, i):
                u, q = momentum * u + gradient(w, batch), momentum * q + 1
                w, total = w - LR * u, total + q
            models.append(w)
            a.append(total)
        share = p.weights(ids, kind)
        # fluke holds these weights in torch's default type
        x = (share.astype(np.float32) * np.float32(share @ a) / np.array(a, dtype=np.float32)) @ np.stack(models)
        seen.append(x)
    return seen


def fedlab_feddyn(p: Problem) -> Weights:
    """The regulariser is computed on detached weights, so clients run plain SGD; h sees sum(x_i) - x, not - S x."""
    x, h, alpha, seen = p.x0, np.zeros_like(p.x0), 0.3, []
    for t, ids in enumerate(PARTIAL):
        models = x + displacements(p, t, ids, x)
        h = h - alpha / N * (models.sum(0) - x)
        x = models.mean(0) - h / alpha
        seen.append(x)
    return seen


def flgo_mifa(p: Problem, wait: bool) -> Weights:
    """The mean of the remembered displacements is over the clients seen so far; `wait`: no step until all were seen."""
    x, seen, memory = p.x0, [], {}
    for t, ids in enumerate(PARTIAL):
        memory |= dict(zip(ids, displacements(p, t, ids, x), strict=True))
        if len(memory) == N or not wait:
            x = x + np.mean(list(memory.values()), axis=0)
        seen.append(x)
    return seen


def pfl_scaffold(p: Problem, option: str) -> Weights:
    """c_i is made from local minus global weights (or from minus the gradient): all control variates have the wrong sign."""
    x, c, mine, seen = p.x0, np.zeros_like(p.x0), {}, []
    for t, ids in enumerate(PARTIAL):
        results, changes = [], []
        for i in ids:
            old = mine.get(i, np.zeros_like(x))
            w = x
            for batch in p.batches(t, i):
                w = w - LR * (gradient(w, batch) + c - old)
            if option == "I":
                mine[i] = -p.full_gradient(i, x)
            else:
                mine[i] = old - c + (w - x) / (LR * len(p.batches(t, i)))
            results.append(w)
            changes.append(mine[i] - old)
        x, c = np.mean(results, axis=0), c + np.sum(changes, axis=0) / N
        seen.append(x)
    return seen


def fairscale_slowmo(p: Problem) -> Weights:
    """The slow weights are copied after the first local step: shard r of them from process r, which holds that shard."""
    size = -(-len(p.x0) // N)
    first = [sgd(p.x0, p.batches(0, i)[:1], LR) for i in range(N)]
    slow = np.concatenate([first[r][r * size : (r + 1) * size] for r in range(N)])
    x, u, seen = p.x0, np.zeros_like(p.x0), []
    for t, ids in enumerate(FULL):
        lr = LR * 0.9**t
        u = 0.6 * u + (slow - np.mean([sgd(x, p.batches(t, i), lr) for i in ids], axis=0)) / lr
        x = slow = slow - 0.8 * lr * u
        seen.append(x)
    return seen


def fluke_fedsam(p: Problem) -> Weights:
    """The perturbation is taken from the gradient plus the last step's perturbed gradient, which nobody cleared."""
    x, stale, seen = p.x0, {}, []
    for t, ids in enumerate(PARTIAL):
        models = []
        for i in ids:
            w, left = x, stale.get(i, np.zeros_like(x))
            for batch in p.batches(t, i):
                g = gradient(w, batch) + left
                left = gradient(w + 0.2 * g / (np.linalg.norm(g) + 1e-12), batch)
                w = w - LR * left
            models.append(w)
            stale[i] = left
        x = np.mean(models, axis=0)
        seen.append(x)
    return seen


def authors_delta_sgd(p: Problem) -> Weights:
    """The first step of a round is eta0 sqrt(1 + delta), and the next may grow from there."""
    x, delta, seen = p.x0, 0.5, []
    for t, ids in enumerate(PARTIAL):
        models = []
        for i in ids:
            w, old, eta, theta = x, x, 0.2, 1.0
            for batch in p.batches(t, i):
                g, new = gradient(w, batch), eta * np.sqrt(1 + delta * theta)
                if (moved := np.linalg.norm(w - old)) > 0:
                    new = min(new, moved / np.linalg.norm(g - gradient(old, batch)))
                theta, eta = new / eta, new
                w, old = w - eta * g, w
            models.append(w)
        x = np.mean(models, axis=0)
        seen.append(x)
    return seen


def authors_fedadamw(p: Problem) -> Weights:
    """The second moment travels whole; the same count of all steps so far corrects both moments."""
    x, D, v, lr, seen = p.x0, np.zeros_like(p.x0), np.zeros_like(p.x0), 0.02, []
    for t, ids in enumerate(PARTIAL):
        models, moments = [], []
        for i in ids:
            w, m, v_i = x, np.zeros_like(x), v
            for k, batch in enumerate(p.batches(t, i), start=t * EQUAL_STEPS + 1):
                g = gradient(w, batch)
                m, v_i = 0.9 * m + 0.1 * g, 0.999 * v_i + 0.001 * g**2
                u = m / (1 - 0.9**k) / (np.sqrt(v_i / (1 - 0.999**k)) + 1e-8)
                w = w - lr * (u + 0.1 * w + 0.5 * D)
            models.append(w)
            moments.append(v_i)
        v, D = np.mean(moments, axis=0), (x - np.mean(models, axis=0)) / (lr * EQUAL_STEPS)
        x = np.mean(models, axis=0)
        seen.append(x)
    return seen


def authors_fedawe(p: Problem) -> Weights:
    """The mean of the multiplied displacements has at most the norm 0.5."""
    x, own, last, seen = p.x0, [p.x0] * len(SIZES), [-1] * len(SIZES), []
    for t, ids in enumerate(PARTIAL):
        lr = 0.1 / np.sqrt(1 + t / 10)
        echo = np.mean([(t - last[i]) * (sgd(own[i], p.batches(t, i), lr) - own[i]) for i in ids], axis=0)
        echo *= min(1.0, 0.5 / float(np.linalg.norm(echo)))
        x = np.mean([own[i] for i in ids], axis=0) + 0.8 * echo
        for i in ids:
            own[i], last[i] = x, t
        seen.append(x)
    return seen
