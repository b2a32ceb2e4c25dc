"""How good the global model is for each client: on its held-out samples, and after a few local steps of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from fedkeel.core.algorithm import make
from fedkeel.core.device import to_device
from fedkeel.engine.client_work import ClientTask, ClientWork, PrivateLayers
from fedkeel.engine.evaluation import CHUNK, at_a_time, evaluate
from fedkeel.engine.held_out import HeldOut
from fedkeel.engine.state.store import Store
from fedkeel.errors import NotFinite

PERSONAL_STEPS = 5  # mini-batch steps of SGD that a client takes before its personal model is evaluated
WORST = 0.1  # the share of clients with the worst scores


def held_out_batches(work: ClientWork, rows: np.ndarray) -> Iterator[tuple[Any, Any]]:
    """These rows of the federation in batches, as the model takes them."""
    x = work.fed.x
    most = at_a_time(x) if isinstance(x, Tensor) else CHUNK
    for start in range(0, len(rows), most):
        yield work.cast(*work.fed.take_rows(rows[start : start + most]))


def client_scores(
    work: ClientWork, held: HeldOut, x: Tensor, buffers: Tensor, store: Store, t: int, lr_factor: float
) -> dict[str, float]:
    """Columns of the history: mean, worst tenth and spread of the clients' scores, and the mean gain of personal models.

    Every client with held-out samples counts the same, however many it has. The spread is the standard deviation.
    """
    own = ClientWork(
        make("fedavg", lr=getattr(work.method_at(t, lr_factor), "lr", 0.01)),
        work.fed,
        work.objective,
        work.seed,
        work.batch_size,
        1.0,
    )
    model, down = work.objective.model, own.algo.init(x)[0]
    before: dict[str, list[float]] = {"accuracy": [], "loss": []}
    after: dict[str, list[float]] = {"accuracy": [], "loss": []}
    for client in held.clients.tolist():
        rows, layers = held.rows_of(client), buffers
        if model.private and client in store:  # its normalisation layers are its own
            layers = to_device(store.read(client).values, model.device)
        task = ClientTask("client", t, client, PERSONAL_STEPS, {}, 0)
        mem = PrivateLayers(layers) if model.private else None
        try:
            result = own.run_client(task, down, layers, mem)
            personal, its_layers = x + result.up.dx, result.buffers.clone()
        except NotFinite:  # such a client would keep the global model
            personal, its_layers = x, layers
        for found, point, buffer in ((before, x, layers), (after, personal, its_layers)):
            score = evaluate(work.objective, point, buffer, held_out_batches(work, rows))
            for name, values in found.items():
                if score[name] is not None:
                    values.append(score[name])
    columns: dict[str, float] = {}
    for name, values in before.items():
        if values:
            gain = np.subtract(after[name], values) * (-1 if name == "loss" else 1)
            columns |= _summary(f"clients_{name}", np.array(values), name == "loss")
            columns[f"clients_{name}_gain"] = float(gain.mean())
    return columns


def _summary(name: str, values: np.ndarray, smaller_is_better: bool) -> dict[str, float]:
    ordered = np.sort(values)[::-1] if smaller_is_better else np.sort(values)
    worst = ordered[: max(1, round(WORST * len(ordered)))]
    return {name: float(values.mean()), f"{name}_worst": float(worst.mean()), f"{name}_spread": float(values.std())}
