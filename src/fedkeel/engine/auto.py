"""Chooses who runs the clients, by a short measurement."""

from __future__ import annotations

import os
import time
from typing import Any

from fedkeel.engine.sequential import Sequential
from fedkeel.engine.store import Store
from fedkeel.engine.vectorized import Vectorized, cannot_vectorize
from fedkeel.engine.work import Jobs, Work

WORTH_MEASURING = 1.0  # seconds that a sequential run must be expected to take
START_WORKERS = 0.3  # seconds until worker processes answer, about
COMPILE = 45.0  # seconds that torch.compile takes for a small model, about
COMPILED_GAIN = 2.5  # how much faster small dense models then are, about


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(work: Work, store: Store, jobs: Jobs, rounds: int, workers: int | None = None) -> tuple[str, str]:
    """(engine, why) for a run of `rounds` rounds like `jobs` with at most so many worker processes; leaves no trace."""
    one = Jobs(
        jobs.stage, jobs.t, jobs.ids[:1], jobs.K[:1], {k: z[:1] for k, z in jobs.drawn.items()}, jobs.down, jobs.buffers
    )
    _timed(Sequential(work, store), store, one)  # the first call pays for lazy set-up
    client = _timed(Sequential(work, store), store, one) / one.K[0] * sum(jobs.K)
    estimates = {"sequential": client * rounds}
    workers = min(workers or cores(), len(jobs.ids))
    on_cpu = work.objective.model.device.type == "cpu"
    if workers > 1 and on_cpu:
        estimates["processes"] = client * rounds / workers * 1.1 + START_WORKERS
    if min(estimates.values()) > WORTH_MEASURING and cannot_vectorize(work.objective.model.module) is None:
        together = _try_vectorized(work, store, jobs)
        if together is not None:
            estimates["vectorized"] = together * rounds
            estimates["compiled"] = together * rounds / COMPILED_GAIN + COMPILE
    best = min(estimates, key=lambda name: estimates[name])
    # Compiling is a guess; it has to promise a lot.
    if best == "compiled" and estimates["compiled"] > 0.7 * estimates["vectorized"]:
        best = min((name for name in estimates if name != "compiled"), key=lambda name: estimates[name])
    told = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in sorted(estimates.items(), key=lambda item: item[1]))
    return best, f"expected for {rounds} rounds: {told}"


def _try_vectorized(work: Work, store: Store, jobs: Jobs) -> float | None:
    try:
        engine = Vectorized(work, store)
        if _timed(engine, store, jobs) is None:
            return None
        return _timed(engine, store, jobs)
    except Exception:  # whatever functorch cannot do with this model, the other engines can
        return None


def _timed(engine: Any, store: Store, jobs: Jobs) -> Any:
    start = time.perf_counter()
    uploads = engine.run(jobs)
    seconds = time.perf_counter() - start
    for slot in uploads.slots.values():
        store.discard(slot)
    return None if isinstance(engine, Vectorized) and uploads.faults else seconds
