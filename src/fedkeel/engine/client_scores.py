"""How good the global model is for each client: on its held-out samples, and after a few local steps of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedkeel.core.algorithm import make
from fedkeel.core.device import to_device
from fedkeel.engine.best_round import BestRound
from fedkeel.engine.client_work import ClientTask, ClientWork, PrivateLayers
from fedkeel.engine.evaluation import CHUNK, RoundEvaluation, at_a_time, evaluate
from fedkeel.engine.held_out import HeldOut
from fedkeel.engine.state.checkpoint import RunState
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


class ClientScore(NamedTuple):
    """Accuracy (None unless the targets are classes) and loss of a client on its held-out samples."""

    before: dict[str, Any]  # of the global model
    after: dict[str, Any]  # of the global model after a few local steps of the client


def validation_scores(evaluation: RoundEvaluation, held: HeldOut, state: RunState, lr_factor: float) -> dict[str, Any]:
    """The scores on all held-out samples, and those of single clients if the run evaluates them. Keeps the best round."""
    settings, work, t = evaluation.settings, evaluation.work, state.t
    if not settings.evaluates(t):
        return {"val_accuracy": None, "val_loss": None}
    at, single = (state.server.x, state.buffers), settings.evaluate_on == "clients"
    columns: dict[str, Any] = {}
    if evaluation.remote is not None:
        found, columns = evaluation.remote.validate(t, *at, lr_factor, single)
    else:
        found = evaluate(work.objective, *at, held_out_batches(work, held.rows), evaluation.own.outputs)
        if single:
            columns = client_scores(work, held, *at, evaluation.store, t, lr_factor)
    if state.best is None or state.best.is_worse_than(found):
        state.best = BestRound(t, found["accuracy"], found["loss"], state.server.x.clone(), state.buffers.clone())
    return {f"val_{name}": value for name, value in found.items()} | columns


def client_scores(
    work: ClientWork, held: HeldOut, x: Tensor, buffers: Tensor, store: Store, t: int, lr_factor: float
) -> dict[str, float]:
    """Columns of the history about the clients with held-out samples: see `score_columns`."""
    model, scores = work.objective.model, []
    for client in held.clients.tolist():
        layers = buffers
        if model.private and client in store:  # its normalisation layers are its own
            layers = to_device(store.read(client).values, model.device)
        scores.append(score_client(work, client, held.rows_of(client), x, layers, t, lr_factor))
    return score_columns(scores)


def score_client(
    work: ClientWork, client: int, rows: np.ndarray, x: Tensor, layers: Tensor, t: int, lr_factor: float
) -> ClientScore:
    """The scores of one client on these rows. layers: the buffers of the model, which may be the client's own."""
    model = work.objective.model
    fedavg = make("fedavg", lr=getattr(work.method_at(t, lr_factor), "lr", 0.01))
    own = ClientWork(fedavg, work.fed, work.objective, work.seed, work.batch_size, 1.0)
    task = ClientTask("client", t, client, PERSONAL_STEPS, {}, 0)
    mem = PrivateLayers(layers) if model.private else None
    try:
        result = own.run_client(task, own.algo.init(x)[0], layers, mem)
        personal, its_layers = x + result.up.dx, result.buffers.clone()
    except NotFinite:  # such a client would keep the global model
        personal, its_layers = x, layers
    before = evaluate(work.objective, x, layers, held_out_batches(work, rows))
    return ClientScore(before, evaluate(work.objective, personal, its_layers, held_out_batches(work, rows)))


def score_columns(scores: Sequence[ClientScore]) -> dict[str, float]:
    """Columns of the history: mean, worst tenth and spread of the clients' scores, and the mean gain of personal models.

    Every client counts the same, however many samples it holds out. The spread is the standard deviation.
    """
    columns: dict[str, float] = {}
    for name in ("accuracy", "loss"):
        known = [score for score in scores if score.before[name] is not None]
        if known:
            values = np.array([score.before[name] for score in known])
            gain = np.array([score.after[name] for score in known]) - values
            columns |= _summary(f"clients_{name}", values, name == "loss")
            columns[f"clients_{name}_gain"] = float((-gain if name == "loss" else gain).mean())
    return columns


def _summary(name: str, values: np.ndarray, smaller_is_better: bool) -> dict[str, float]:
    ordered = np.sort(values)[::-1] if smaller_is_better else np.sort(values)
    worst = ordered[: max(1, round(WORST * len(ordered)))]
    return {name: float(values.mean()), f"{name}_worst": float(worst.mean()), f"{name}_spread": float(values.std())}
