"""Measurements that the papers report beside test accuracy; each is costly, so each is made only when asked for.

All are about the end of a round: the new global model x', and what the clients of the round and the server did to get there.
They read the same records whatever engine ran the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.one_client import OneClient
from fedkeel.core.round import Round
from fedkeel.core.trial import trial_upload
from fedkeel.engine.client_work import Work
from fedkeel.engine.evaluation import at_a_time, evaluating, scores
from fedkeel.engine.state.store import Store
from fedkeel.errors import nearest, refuse
from fedkeel.rules.cone_qp import TOLERANCE

TRACKED = ("c", "y", "lam")  # fields of a client's record that estimate its gradient (or Adam direction)


@dataclass
class Seen:
    """What a measurement may look at."""

    work: Work
    x: Tensor  # [d] global model before the round
    old: Any  # server record before
    new: Any  # server record after
    up: Any  # uploads, [S, ...]
    r: Round
    store: Store
    buffers: Tensor
    weights: np.ndarray  # [N] of the clients in the global loss


def check(names: Sequence[str], algo: Algorithm) -> None:
    """Raises if there is no such measurement, or if this method does not have what it looks at."""
    # A text is a sequence, too: of letters.
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise refuse("metrics", names, f"a list of names: {', '.join(METRICS)}")
    for name in names:
        if name not in METRICS:
            raise ValueError(f"metrics: unknown name {name!r}{nearest(name, METRICS)}")
    if names and algo.facts.private:
        raise ValueError(f"metrics: {algo.name} has no one global model, so nothing but its accuracy is measured")
    if "tracking" in names and _tracked(algo.init(torch.zeros(2))[1]) is None:
        raise ValueError(f"metrics: 'tracking' is not defined for {algo.name}: its clients keep no {', '.join(TRACKED)}")
    if "qp" in names and not _has_memory(algo):
        raise ValueError(f"metrics: 'qp' is not defined for {algo.name}; only for gradma, gradma-s and servers like theirs")
    displaced = {"consistency", "drift"} & set(names)
    if displaced and not _uploads_dx(algo):
        raise ValueError(
            f"metrics: {min(displaced)!r} is not defined for {algo.name}: it does not upload dx, local minus global model"
        )


def _has_memory(algo: Algorithm) -> bool:
    """Has it all that `qp` looks at: a server momentum with decays, a memory of displacements, and new ones?"""
    server = algo.init(torch.zeros(2))[0]
    kept = all(hasattr(server, name) for name in ("m", "D", "ids"))
    return kept and hasattr(algo, "beta1") and hasattr(algo, "beta2") and _uploads_dx(algo)


def _uploads_dx(algo: Algorithm) -> bool:
    planned = algo.plan(Plan(N=1, S=1, K=1.0, T=1))
    return hasattr(trial_upload(planned, "client", Layers([2, 1]), torch.float32), "dx")


def measure(names: Sequence[str], seen: Seen) -> dict[str, float]:
    """The numbers of all these measurements."""
    model = seen.work.objective.model
    if model.has_buffers:
        model.write_buffers(seen.buffers)
    found: dict[str, float] = {}
    with evaluating(model.module):
        for name in names:
            found |= METRICS[name](seen)
    return found


# On all training data -------------------------------------------------------------------------------------------------


def train_set(seen: Seen) -> dict[str, float]:
    """Loss and accuracy of x' on the data of all clients, not augmented; the objective adds weight decay, if any."""
    fed, objective = seen.work.fed, seen.work.objective
    rows = np.arange(int(fed.offsets[-1])) if fed.order is None else fed.order
    objective.model.bind(seen.new.x)
    batches = np.split(rows, range(at_a_time(fed.x), len(rows), at_a_time(fed.x)))
    loss, accuracy = scores(objective.model.module, objective.loss, (seen.work.cast(*fed.take_rows(z)) for z in batches))
    decay = 0.5 * objective.weight_decay * float(seen.new.x.double().square().sum())
    found = {"train_set_loss": loss} | ({"objective": loss + decay} if objective.weight_decay else {})
    return found | ({} if accuracy is None else {"train_accuracy": accuracy})


def gradient_norm(seen: Seen) -> dict[str, float]:
    """Norm of the gradient of the global loss at x', weight decay included."""
    total = torch.zeros_like(seen.new.x, dtype=torch.float64)
    for client, gradient in _gradients(seen):
        total += float(seen.weights[client]) * gradient.double()
    return {"gradient_norm": float(total.norm())}


def tracking(seen: Seen) -> dict[str, float]:
    """Mean squared distance of the clients' control variates from their gradients at x'; of their mean from the server's."""
    error, mean = 0.0, torch.zeros_like(seen.new.x, dtype=torch.float64)
    sign = -1 if seen.work.algo.name == "fedpd" else 1  # its dual is the opposite of a gradient
    for client, gradient in _gradients(seen):
        own = sign * _tracked(seen.store.read(client)).double()
        error += float((own - gradient.double()).square().sum()) / len(seen.weights)
        mean += float(seen.weights[client]) * own
    found = {"tracking_error": error}
    server = _tracked(seen.new)
    return found if server is None else found | {"tracking_bias": float((server.double() - mean).norm())}


def _gradients(seen: Seen) -> Iterator[tuple[int, Tensor]]:
    """(client, full gradient of its loss at x') of every client."""
    work = seen.work
    for client in range(len(work.fed)):
        steps = OneClient(work.objective, seen.r.t, [], partial(work.all_of, client), work.workspace)
        yield client, steps.full_grad(seen.new.x)


def _tracked(record: Any) -> Any:
    """The control variate in a record of a client or server, if it has one."""
    return next((getattr(record, name) for name in TRACKED if hasattr(record, name)), None)


# On the round ---------------------------------------------------------------------------------------------------------


def consistency(seen: Seen) -> dict[str, float]:
    """Mean squared distance of the local models from x'."""
    away = seen.up.dx.double() + (seen.x - seen.new.x).double()
    return {"consistency": float(away.square().sum(1).mean())}


def drift(seen: Seen) -> dict[str, float]:
    """Mean squared distance of the local models from where they began, and the cosine of each way with the mean."""
    dx = seen.up.dx.double()
    mean = seen.r.avg(seen.up.dx).double()
    norms = dx.norm(dim=1) * mean.norm()
    cosines = torch.where(norms > 0, dx @ mean / norms.clamp_min(1e-300), 0.0)
    return {"drift": float(dx.square().sum(1).mean()), "cosine": float(cosines.mean())}


def qp(seen: Seen) -> dict[str, float]:
    """GradMA's server: constraints that the momentum violated, how far it was turned, what is violated still."""
    algo: Any = seen.work.algo
    before = algo.beta1 * seen.old.m.double() + seen.r.avg(seen.up.dx).double()
    after = seen.new.m.double()
    live = seen.new.ids >= 0 if algo.beta2 > 0 else torch.isin(seen.new.ids, seen.r.ids.to(seen.new.ids.device))
    rows = seen.new.D[live].double()
    rows = rows[rows.norm(dim=1) > 0]
    if not len(rows):
        return {"qp_violated": 0, "qp_turned": 0.0, "qp_residual": 0.0}
    rows = rows / rows.norm(dim=1, keepdim=True)
    size = before.norm().clamp_min(1e-300)
    return {
        "qp_violated": int((rows @ before < -TOLERANCE * size).sum()),
        "qp_turned": float((after - before).norm() / size),
        "qp_residual": float((-(rows @ after)).clamp_min(0).max() / size),
    }


METRICS: dict[str, Callable[[Seen], dict[str, float]]] = {
    "train": train_set,
    "gradient_norm": gradient_norm,
    "consistency": consistency,
    "drift": drift,
    "tracking": tracking,
    "qp": qp,
}
