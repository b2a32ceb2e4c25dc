"""Chooses the engine by a short measurement.

`sequential` and `processes` have the same bits, so between them the faster one is taken. `vectorized` and `compiled` have
others, so they must be clearly faster, in two measurements. Time during which other programs had the core does not count.
"""

from __future__ import annotations

import dataclasses
import time

from torch import Tensor

from fedkeel.core.torch_private import CONVOLUTIONS
from fedkeel.engine.client_work import ClientWork, Exchange, Uploads
from fedkeel.engine.machine import cores
from fedkeel.engine.runners.measured import Measured, key_of, recall, remember
from fedkeel.engine.runners.runner import Runner, Sequential
from fedkeel.engine.state.store import Store

WORTH_MEASURING = 3.0  # seconds; in shorter runs, a trial of all clients at once, up to a second, would not pay
LONG_STEP = 0.1  # seconds; if a local step takes longer, measuring one of them is enough
TRIAL_STEPS = 3  # a trial of all clients at once has at least this many local steps, and runs at least four times
TRIAL_SHARE = 0.05  # the largest part of the expected time that this trial may take
TRIAL_BYTES = 1 << 28  # of one vector for every client: beyond that, all clients at once would take too much memory
REPEAT, BRIEF = 5, 0.1  # a measurement is repeated up to 5 times, or 0.1 s: other programs may have disturbed the first
ALIKE, PATIENT = 1.25, 1.0  # it is repeated up to 1 s while the two fastest differ by more than this factor
CLEARLY = 1.25  # an engine with other bits must be faster by this factor
START_WORKERS = 0.3  # seconds until worker processes are ready, about
MESSAGES = 0.0005  # seconds that a round takes to reach the workers and come back, about
COMPILE = 45.0  # seconds that torch.compile takes for a small model, about
COMPILED_GAIN = 1.5  # how much faster small dense models are when compiled, about (`fedkeel bench --only b`)


def choose(work: ClientWork, store: Store, exchange: Exchange, rounds: int, workers: int | None = None) -> tuple[str, str]:
    """(engine, reason) for a run of `rounds` rounds like `exchange`. The measurement changes nothing in the store.

    workers: the most worker processes that are allowed; None: one per core.
    """
    workers = min(workers or cores(), len(exchange.ids)) if work.objective.model.device.type == "cpu" else 1
    key = key_of(work, exchange)
    measured, before = recall(key), " (measured before)"
    if measured is None:
        measured, before = _measure(work, store, exchange, rounds, workers, key), ""
    expected = estimates(measured, exchange, rounds, workers)
    listed = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in sorted(expected.items(), key=lambda item: item[1]))
    return best_of(expected), f"expected for {rounds} rounds: {listed}{before}"


def estimates(measured: Measured, exchange: Exchange, rounds: int, workers: int) -> dict[str, float]:
    """Engine -> the seconds that it would take, about."""
    expected = {"sequential": measured.round * rounds}
    if workers > 1:
        expected["processes"] = measured.round * rounds / workers * 1.1 + MESSAGES * rounds + START_WORKERS
    if measured.step is not None:
        expected["vectorized"] = measured.step * max(exchange.K) * rounds
        expected["compiled"] = expected["vectorized"] / COMPILED_GAIN + COMPILE
    return expected


def best_of(expected: dict[str, float]) -> str:
    """The engine to take, given the seconds that each would take."""
    safe = min((name for name in ("sequential", "processes") if name in expected), key=lambda name: expected[name])
    best = min(expected, key=lambda name: expected[name])
    # The estimate for compiling is a guess, so the gain must be large.
    if best == "compiled" and expected["compiled"] > 0.7 * expected["vectorized"]:
        best = min((name for name in expected if name != "compiled"), key=lambda name: expected[name])
    return best if expected[safe] > CLEARLY * expected[best] else safe


def _measure(work: ClientWork, store: Store, exchange: Exchange, rounds: int, workers: int, key: str) -> Measured:
    """Measures clients one by one and, if it is worth it, all at once. Remembers what two measurements agree on."""
    runner = Sequential(work, store)
    step = _fastest(runner, store, _part(exchange, 1, 1))  # its first call also pays for lazy initialisation
    # Clients differ, and some may have a single sample. So measure as many of them as a brief time allows.
    some = _part(exchange, max(1, int(BRIEF / step / exchange.K[0])), 1 if step > LONG_STEP else exchange.K[0])
    seconds = _fastest(runner, store, some) / sum(some.K) * sum(exchange.K)  # of a round
    expected = min(estimates(Measured(seconds, None), exchange, rounds, workers).values())
    trial = 4 * TRIAL_STEPS / max(exchange.K) * seconds
    if expected < WORTH_MEASURING or trial > TRIAL_SHARE * expected or not _may_run_at_once(work, len(exchange.ids)):
        return Measured(seconds, None)
    # With few steps, what a round costs beside its steps would count too much. So take more if that is brief.
    steps = max(TRIAL_STEPS, int(BRIEF / seconds * max(exchange.K)))
    everybody = _part(exchange, len(exchange.ids), steps)
    first = _try_vectorized(work, store, everybody)
    if first is None:
        return Measured(seconds, None)
    again = _fastest(runner, store, some) / sum(some.K) * sum(exchange.K)
    second = _try_vectorized(work, store, everybody) or first
    measured = Measured(min(seconds, again), min(first, second))
    if _alike(seconds, again) and _alike(first, second):
        remember(key, measured)
    return measured


def _may_run_at_once(work: ClientWork, S: int) -> bool:
    """Convolutions are slower for all clients at once. Large models take too much memory for all of them."""
    model = work.objective.model
    convolves = any(isinstance(part, CONVOLUTIONS) for part in model.module.modules())
    return (
        not convolves
        and isinstance(work.fed.x, Tensor)
        and S * sum(model.layers.sizes) * model.dtype.itemsize <= TRIAL_BYTES
    )


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= ALIKE * min(a, b)


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
    while len(seconds) < REPEAT:
        settled = len(seconds) > 1 and _alike(*sorted(seconds)[:2])
        if sum(seconds) > (BRIEF if settled else PATIENT):
            break
        seconds.append(_timed(runner, store, exchange))
    return min(seconds)


def _timed(runner: Runner, store: Store, exchange: Exchange) -> float:
    """Seconds. On the CPU, only those count in which this process had the core."""
    start, busy = time.perf_counter(), time.process_time()
    _run(runner, store, exchange)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    on_cpu = exchange.buffers.device.type == "cpu" and all(z.device.type == "cpu" for z in exchange.down)
    return min(seconds, busy) if on_cpu else seconds


def _run(runner: Runner, store: Store, exchange: Exchange) -> Uploads:
    """Runs the exchange, and frees the slots that it took."""
    uploads = runner.run(exchange)
    for slot in uploads.slots.values():
        store.discard(slot)
    return uploads
