"""Chooses who runs the clients, by a short measurement."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from torch import nn

from fedkeel.engine.client_work import Jobs, Work
from fedkeel.engine.runners.sequential import Sequential
from fedkeel.engine.runners.vectorized import Vectorized, cannot_vectorize
from fedkeel.engine.state.store import Store

WORTH_MEASURING = 6.0  # seconds that a run must be expected to take; a trial of all clients at once takes one
LONG_STEP = 0.1  # seconds; where a local step takes longer, one of them is measurement enough
TRIAL_STEPS = 3  # local steps of all clients at once, at least twice, to see what that takes
TRIAL_SHARE = 0.05  # of the expected time may go into that
REPEAT, BRIEF = 5, 0.1  # times that a measurement is repeated until it has taken so many seconds: others disturb it
START_WORKERS = 0.3  # seconds until worker processes answer, about
COMPILE = 45.0  # seconds that torch.compile takes for a small model, about
COMPILED_GAIN = 1.5  # how much faster small dense models then are, about (`fedkeel bench --only b`)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(work: Work, store: Store, jobs: Jobs, rounds: int, workers: int | None = None) -> tuple[str, str]:
    """(engine, why) for a run of `rounds` rounds like `jobs` with at most so many worker processes; leaves no trace."""
    first = Sequential(work, store)
    step = _fastest(first, store, _part(jobs, 1, 1))  # the first one pays for lazy set-up, too
    # Clients differ, some may have a sample only: as many of them as are measured quickly.
    some = _part(jobs, max(1, int(BRIEF / step / jobs.K[0])), 1 if step > LONG_STEP else jobs.K[0])
    client = _fastest(first, store, some) / sum(some.K) * sum(jobs.K)
    estimates = {"sequential": client * rounds}
    workers = min(workers or cores(), len(jobs.ids))
    on_cpu = work.objective.model.device.type == "cpu"
    if workers > 1 and on_cpu:
        estimates["processes"] = client * rounds / workers * 1.1 + START_WORKERS
    expected, trial = min(estimates.values()), 2 * TRIAL_STEPS / max(jobs.K) * client
    if expected > WORTH_MEASURING and trial < TRIAL_SHARE * expected and _dense(work.objective.model.module):
        together = _try_vectorized(work, store, _part(jobs, len(jobs.ids), TRIAL_STEPS))
        if together is not None:
            estimates["vectorized"] = together * max(jobs.K) * rounds
            estimates["compiled"] = estimates["vectorized"] / COMPILED_GAIN + COMPILE
    best = min(estimates, key=lambda name: estimates[name])
    # Compiling is a guess; it has to promise a lot.
    if best == "compiled" and estimates["compiled"] > 0.7 * estimates["vectorized"]:
        best = min((name for name in estimates if name != "compiled"), key=lambda name: estimates[name])
    told = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in sorted(estimates.items(), key=lambda item: item[1]))
    return best, f"expected for {rounds} rounds: {told}"


def _dense(module: nn.Module) -> bool:
    """Can, and should, it be tried for all clients at once? Convolutions lose by it, and take memory for all of them."""
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
    return not convolves and cannot_vectorize(module) is None


def _part(jobs: Jobs, clients: int, steps: int) -> Jobs:
    """The first clients of a round, with at most so many local steps."""
    part = jobs.only(range(min(clients, len(jobs.ids))))
    return dataclasses.replace(part, K=[min(K, steps) for K in part.K])


def _try_vectorized(work: Work, store: Store, jobs: Jobs) -> float | None:
    """Seconds per local step of all clients at once."""
    try:
        engine = Vectorized(work, store)
        if _timed(engine, store, jobs) is None:
            return None
        return float(_fastest(engine, store, jobs)) / max(jobs.K)
    except Exception:  # whatever functorch cannot do with this model, the other engines can
        return None


def _fastest(engine: Any, store: Store, jobs: Jobs) -> Any:
    seconds = [_timed(engine, store, jobs)]
    while len(seconds) < REPEAT and sum(seconds) < BRIEF:
        seconds.append(_timed(engine, store, jobs))
    return min(seconds)


def _timed(engine: Any, store: Store, jobs: Jobs) -> Any:
    start = time.perf_counter()
    uploads = engine.run(jobs)
    seconds = time.perf_counter() - start
    for slot in uploads.slots.values():
        store.discard(slot)
    return None if isinstance(engine, Vectorized) and uploads.faults else seconds
