"""Chooses the engine by a short measurement."""

from __future__ import annotations

import dataclasses
import time

from torch import nn

from fedkeel.core.torch_private import CONVOLUTIONS
from fedkeel.engine.client_work import ClientWork, Exchange, Uploads
from fedkeel.engine.machine import cores
from fedkeel.engine.runners.runner import Runner, Sequential
from fedkeel.engine.state.store import Store

WORTH_MEASURING = 6.0  # seconds; in shorter runs, a trial of all clients at once, about a second, would not pay
LONG_STEP = 0.1  # seconds; if a local step takes longer, measuring one of them is enough
TRIAL_STEPS = 3  # local steps of a trial of all clients at once; the trial runs at least twice
TRIAL_SHARE = 0.05  # the largest part of the expected time that this trial may take
REPEAT, BRIEF = 5, 0.1  # a measurement is repeated up to 5 times, or 0.1 s: other programs may have disturbed the first
START_WORKERS = 0.3  # seconds until worker processes are ready, about
COMPILE = 45.0  # seconds that torch.compile takes for a small model, about
COMPILED_GAIN = 1.5  # how much faster small dense models are when compiled, about (`fedkeel bench --only b`)


def choose(work: ClientWork, store: Store, exchange: Exchange, rounds: int, workers: int | None = None) -> tuple[str, str]:
    """(engine, reason) for a run of `rounds` rounds like `exchange`. The measurement changes nothing in the store.

    workers: the most worker processes that are allowed; None: one per core.
    """
    first = Sequential(work, store)
    step = _fastest(first, store, _part(exchange, 1, 1))  # its first call also pays for lazy initialisation
    # Clients differ, and some may have a single sample. So measure as many of them as a brief time allows.
    some = _part(exchange, max(1, int(BRIEF / step / exchange.K[0])), 1 if step > LONG_STEP else exchange.K[0])
    seconds = _fastest(first, store, some) / sum(some.K) * sum(exchange.K)  # of a round
    estimates = {"sequential": seconds * rounds}
    workers = min(workers or cores(), len(exchange.ids))
    on_cpu = work.objective.model.device.type == "cpu"
    if workers > 1 and on_cpu:
        estimates["processes"] = seconds * rounds / workers * 1.1 + START_WORKERS
    expected, trial = min(estimates.values()), 2 * TRIAL_STEPS / max(exchange.K) * seconds
    if expected > WORTH_MEASURING and trial < TRIAL_SHARE * expected and not _convolves(work.objective.model.module):
        together = _try_vectorized(work, store, _part(exchange, len(exchange.ids), TRIAL_STEPS))
        if together is not None:
            estimates["vectorized"] = together * max(exchange.K) * rounds
            estimates["compiled"] = estimates["vectorized"] / COMPILED_GAIN + COMPILE
    best = min(estimates, key=lambda name: estimates[name])
    # The estimate for compiling is a guess, so the gain must be large.
    if best == "compiled" and estimates["compiled"] > 0.7 * estimates["vectorized"]:
        best = min((name for name in estimates if name != "compiled"), key=lambda name: estimates[name])
    listed = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in sorted(estimates.items(), key=lambda item: item[1]))
    return best, f"expected for {rounds} rounds: {listed}"


def _convolves(module: nn.Module) -> bool:
    """Convolutions are slower for all clients at once, and take memory for all of them."""
    return any(isinstance(part, CONVOLUTIONS) for part in module.modules())


def _part(exchange: Exchange, clients: int, steps: int) -> Exchange:
    """The first clients of an exchange, each with at most `steps` local steps."""
    part = exchange.only(range(min(clients, len(exchange.ids))))
    return dataclasses.replace(part, K=[min(K, steps) for K in part.K])


def _try_vectorized(work: ClientWork, store: Store, exchange: Exchange) -> float | None:
    """Seconds per local step of all clients at once; None if the model cannot run like that."""
    from fedkeel.engine.runners.vectorized import Vectorized, cannot_vectorize

    if cannot_vectorize(work.objective.model.module) is not None:
        return None
    try:
        runner = Vectorized(work, store)
        if _run(runner, store, exchange).faults:
            return None
        return _fastest(runner, store, exchange) / max(exchange.K)
    except Exception:  # functorch cannot run this model; the other engines can
        return None


def _fastest(runner: Runner, store: Store, exchange: Exchange) -> float:
    seconds = [_timed(runner, store, exchange)]
    while len(seconds) < REPEAT and sum(seconds) < BRIEF:
        seconds.append(_timed(runner, store, exchange))
    return min(seconds)


def _timed(runner: Runner, store: Store, exchange: Exchange) -> float:
    start = time.perf_counter()
    _run(runner, store, exchange)
    return time.perf_counter() - start


def _run(runner: Runner, store: Store, exchange: Exchange) -> Uploads:
    """Runs the exchange, and frees the slots that it took."""
    uploads = runner.run(exchange)
    for slot in uploads.slots.values():
        store.discard(slot)
    return uploads
