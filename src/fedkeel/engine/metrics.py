"""Measurements that the papers report beside test accuracy. Each is costly, so a run makes only those that you name.

All of them look at the end of a round: at the new global model x', and at what the clients and the server did to get there.
They read the same records, whichever engine ran the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.device import to_device
from fedkeel.core.flat import Layers
from fedkeel.core.records import trial_upload
from fedkeel.core.round import Round
from fedkeel.core.steps import OneClient
from fedkeel.data.dataset_pool import CHUNK
from fedkeel.engine.client_work import ClientWork
from fedkeel.engine.evaluation import at_a_time, evaluating, scores
from fedkeel.engine.state.store import Store
from fedkeel.rules.cone_qp import TOLERANCE

CONTROL_VARIATES = ("c", "y", "lam")  # fields of a client's record that estimate its gradient (or Adam direction)


@dataclass
class MetricInputs:
    """What a measurement may use."""

    work: ClientWork
    x: Tensor  # [d] global model before the round
    old: Any  # server record before
    new: Any  # server record after
    up: Any  # uploads, [S, ...]
    r: Round
    store: Store
    buffers: Tensor
    weights: np.ndarray  # [N] weight of each client in the global loss


def measure(names: Sequence[str], inputs: MetricInputs) -> dict[str, float]:
    """Makes these measurements -> column of the history: number."""
    model = inputs.work.objective.model
    if model.has_buffers:
        model.write_buffers(inputs.buffers)
    found: dict[str, float] = {}
    with evaluating(model.module):
        for name in names:
            found |= METRICS[name](inputs)
    return found


# On all training data -------------------------------------------------------------------------------------------------


def train_set(inputs: MetricInputs) -> dict[str, float]:
    """Loss and accuracy of x' on the data of all clients, without augmentation. The objective adds weight decay."""
    fed, objective = inputs.work.fed, inputs.work.objective
    rows = np.arange(int(fed.offsets[-1])) if fed.order is None else fed.order
    objective.model.bind(inputs.new.x)
    most = at_a_time(fed.x) if isinstance(fed.x, Tensor) else CHUNK
    batches = np.split(rows, range(most, len(rows), most))
    loss, accuracy = scores(objective.model.module, objective.loss, (inputs.work.cast(*fed.take_rows(z)) for z in batches))
    decay = 0.5 * objective.weight_decay * float(inputs.new.x.double().square().sum())
    found = {"train_set_loss": loss} | ({"objective": loss + decay} if objective.weight_decay else {})
    return found | ({} if accuracy is None else {"train_accuracy": accuracy})


def gradient_norm(inputs: MetricInputs) -> dict[str, float]:
    """Norm of the gradient of the global loss at x', weight decay included."""
    total = torch.zeros_like(inputs.new.x, dtype=torch.float64)
    for client, gradient in _gradients(inputs):
        total += float(inputs.weights[client]) * gradient.double()
    return {"gradient_norm": float(total.norm())}


def tracking(inputs: MetricInputs) -> dict[str, float]:
    """Error: mean squared distance of the clients' control variates from their gradients at x'.
    Bias: distance of the clients' mean control variate from the server's, if the server has one."""
    error, mean = 0.0, torch.zeros_like(inputs.new.x, dtype=torch.float64)
    sign = -1 if inputs.work.algo.name == "fedpd" else 1  # its dual is the opposite of a gradient
    for client, gradient in _gradients(inputs):
        c = sign * to_device(control_variate(inputs.store.read(client)), inputs.new.x.device).double()
        error += float((c - gradient.double()).square().sum()) / len(inputs.weights)
        mean += float(inputs.weights[client]) * c
    found = {"tracking_error": error}
    server = control_variate(inputs.new)
    return found if server is None else found | {"tracking_bias": float((server.double() - mean).norm())}


def _gradients(inputs: MetricInputs) -> Iterator[tuple[int, Tensor]]:
    """(client, full gradient of its loss at x') of every client."""
    work = inputs.work
    for client in range(len(work.fed)):
        steps = OneClient(work.objective, inputs.r.t, [], partial(work.all_data, client), work.workspace)
        yield client, steps.full_grad(inputs.new.x)


# On the round ---------------------------------------------------------------------------------------------------------


def consistency(inputs: MetricInputs) -> dict[str, float]:
    """Mean squared distance of the local models from x'."""
    away = inputs.up.dx.double() + (inputs.x - inputs.new.x).double()
    return {"consistency": float(away.square().sum(1).mean())}


def drift(inputs: MetricInputs) -> dict[str, float]:
    """Drift: mean squared distance of the local models from the old global model. Cosine: mean cosine of a client's
    displacement with the mean displacement."""
    dx = inputs.up.dx.double()
    mean = inputs.r.avg(inputs.up.dx).double()
    norms = dx.norm(dim=1) * mean.norm()
    cosines = torch.where(norms > 0, dx @ mean / norms.clamp_min(1e-300), 0.0)
    return {"drift": float(dx.square().sum(1).mean()), "cosine": float(cosines.mean())}


def qp(inputs: MetricInputs) -> dict[str, float]:
    """GradMA's server: how many constraints the momentum violated, how far the projection moved it, and the largest
    violation that is left."""
    algo: Any = inputs.work.algo
    before = algo.beta1 * inputs.old.m.double() + inputs.r.avg(inputs.up.dx).double()
    after = inputs.new.m.double()
    live = inputs.new.ids >= 0 if algo.beta2 > 0 else torch.isin(inputs.new.ids, inputs.r.ids.to(inputs.new.ids.device))
    rows = inputs.new.D[live].double()
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


METRICS: dict[str, Callable[[MetricInputs], dict[str, float]]] = {
    "train": train_set,
    "gradient_norm": gradient_norm,
    "consistency": consistency,
    "drift": drift,
    "tracking": tracking,
    "qp": qp,
}


# Which method has which measurement? ---------------------------------------------------------------------------------


def check_defined(names: Sequence[str], algo: Algorithm) -> None:
    """Raises if a measurement needs something that this method does not have."""
    if names and algo.facts.private:
        raise ValueError(f"metrics: {algo.name} does not have one global model, so only its accuracy can be measured")
    if "tracking" in names and control_variate(algo.init(torch.zeros(2))[1]) is None:
        kept = ", ".join(CONTROL_VARIATES)
        raise ValueError(f"metrics: 'tracking' is not defined for {algo.name}: its clients keep no {kept}")
    if "qp" in names and not _has_memory(algo):
        raise ValueError(
            f"metrics: 'qp' is not defined for {algo.name}; only for gradma, gradma-s and methods with such a server"
        )
    displaced = {"consistency", "drift"} & set(names)
    if displaced and not _uploads_dx(algo):
        raise ValueError(
            f"metrics: {min(displaced)!r} is not defined for {algo.name}: it does not upload dx, local minus global model"
        )


def control_variate(record: Any) -> Any:
    """The control variate in a record of a client or server; None if it has none."""
    return next((getattr(record, name) for name in CONTROL_VARIATES if hasattr(record, name)), None)


def _has_memory(algo: Algorithm) -> bool:
    """Does it have what `qp` reads: a server momentum with decays, a memory of displacements, and new displacements?"""
    server = algo.init(torch.zeros(2))[0]
    kept = all(hasattr(server, name) for name in ("m", "D", "ids"))
    return kept and hasattr(algo, "beta1") and hasattr(algo, "beta2") and _uploads_dx(algo)


def _uploads_dx(algo: Algorithm) -> bool:
    layers = Layers([2, 1])
    planned = algo.plan(Plan(N=1, S=1, K=1.0, T=1, layers=layers))
    return hasattr(trial_upload(planned, "client", layers, torch.float32), "dx")
