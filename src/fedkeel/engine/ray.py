"""Clients spread over the actors of a Ray cluster, on this machine or on many.

An actor is a process with one thread that holds the model and the data, which lie in Ray's object store once per node. The
driver puts what the server sends there once per round, and gets uploads and new client records back. Client memory itself
stays with the driver, so a node that dies takes nothing with it: its clients are run again elsewhere, with the same bits.
Uploads are not added up on the nodes: sums in another order than the clients' would have other bits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fedkeel.engine.auto import cores
from fedkeel.engine.ray_actor import Actor, as_bytes, pack, record_bytes
from fedkeel.engine.sequential import Stack, describe
from fedkeel.engine.settings import check_workers
from fedkeel.engine.store import Store
from fedkeel.engine.work import Jobs, Uploads, Work

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError:
    raise ValueError("engine: 'ray' needs the package ray: pip install 'fedkeel[ray]'") from None

DEATHS = 3  # of workers over one client, until the client is given up for the round
AHEAD = 2  # clients a worker holds, so that it never waits for the next one
PATIENCE = 300.0  # seconds in which at least one worker must have started


def connect(address: str, cpus: int | None = None) -> Callable[[], None]:
    """Joins the cluster at `address`, or starts one here ("local"). Returns what ends that again: it leaves a cluster that
    was there before as it is, and a connection that this process had before, too."""
    if ray.is_initialized():
        ours = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", ours):
            raise ValueError(f"ray_address = {address!r} is not allowed: this process is already connected to {ours}")
        return lambda: None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or a cluster that we start would report to its makers
    options: dict[str, Any] = {"num_cpus": cpus or cores(), "include_dashboard": False} if address == "local" else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what later releases of Ray will do otherwise
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except Exception as error:
        raise ValueError(f"ray_address = {address!r}: no cluster can be used there: {describe(error)}") from error
    return ray.shutdown


@dataclass
class Worker:
    actor: Any
    calls: deque[tuple[Any, int | None]]  # (answer to come, position of the client), oldest first; its start has none
    node: str = ""  # where it runs; empty until it has started
    since: float = 0.0  # when the oldest of its clients was begun


@dataclass
class Exchange:
    """One call of `run`."""

    jobs: Jobs
    down: Any  # where in the object store the broadcast lies
    uploads: Uploads
    waiting: deque[int]  # positions of the clients that no worker has
    deaths: Counter[int] = field(default_factory=Counter)  # of workers, by the position that they were at


class Ray:
    def __init__(
        self, work: Work, store: Store, S: int, workers: int | None, timeout: float | None, address: str, device: str
    ) -> None:
        check_workers(workers, timeout)
        self.work, self.store, self.timeout = work, store, timeout
        self.stacks = {stage: Stack(like, S).record for stage, like in work.uploads().items()}
        setup, data = pack(work, store.initial)  # an error, if it cannot be sent, comes before a cluster is started
        self.disconnect = connect(address, workers)
        try:
            self.setup = ray.put(setup), ray.put(data)
            count, options = self._resources(S, workers, device)
            self.make = ray.remote(Actor).options(max_restarts=0, scheduling_strategy="SPREAD", **options)
            self.failed = 0  # workers in a row that died before they had started
            self.workers: list[Worker] = []
            self.workers += [self._start() for _ in range(count)]
            while not any(worker.node for worker in self.workers):
                self._step(None)
        except BaseException:
            self.close()
            raise

    def _resources(self, S: int, workers: int | None, device: str) -> tuple[int, dict[str, Any]]:
        """How many workers, and what each asks Ray for: a core, and its part of the GPUs where there are any."""
        total = ray.cluster_resources()
        cpus, gpus = int(total.get("CPU", 0)), 0 if device == "cpu" else int(total.get("GPU", 0))
        if cpus < 1:
            raise ValueError("engine: 'ray': the cluster has no CPU for a worker")
        count = min(workers or gpus or cpus, cpus, S)
        return count, {"num_cpus": 1, "num_gpus": min(1.0, gpus / count)}

    def _start(self) -> Worker:
        actor = self.make.remote()
        return Worker(actor, deque([(actor.start.remote(*self.setup), None)]), since=time.monotonic())

    def run(self, jobs: Jobs) -> Uploads:
        S, device = len(jobs.ids), self.work.objective.model.device
        stack = self.stacks[jobs.stage]
        up = type(stack)(*(z[:S] for z in stack))
        losses, buffers = torch.zeros(S, dtype=torch.float64), torch.zeros(S, len(jobs.buffers), dtype=torch.float64)
        down = ray.put((record_bytes(jobs.down), as_bytes(jobs.buffers)))
        # The longest first, so that the workers end together.
        order = sorted(range(S), key=lambda position: -jobs.K[position])
        now = Exchange(jobs, down, Uploads(up, buffers, losses, {}, {}), deque(order))
        while now.waiting or any(position is not None for worker in self.workers for _, position in worker.calls):
            for worker in self.workers:
                while worker.node and now.waiting and len(worker.calls) < AHEAD:
                    self._send(worker, now.waiting.popleft(), now)
            self._step(now)
        now.uploads.up = type(up)(*(z.to(device) for z in up))
        return now.uploads

    def _send(self, worker: Worker, position: int, now: Exchange) -> None:
        jobs, client = now.jobs, now.jobs.ids[position]
        drawn = {name: float(z[position]) for name, z in jobs.drawn.items()}
        mem = record_bytes(self.store.read(client)) if client in self.store else None
        if not worker.calls:
            worker.since = time.monotonic()
        call = worker.actor.client.remote(now.down, jobs.stage, jobs.t, client, jobs.K[position], drawn, mem)
        worker.calls.append((call, position))

    def _step(self, now: Exchange | None) -> None:
        """Waits for the next answer of any worker, and takes what is there."""
        busy = {worker.calls[0][0]: worker for worker in self.workers if worker.calls}
        ready, _ = ray.wait(list(busy), timeout=self._patience())
        for answer in ready:
            self._take(busy[answer], answer, now)
        for worker in list(self.workers):
            if self.timeout and worker.node and worker.calls and time.monotonic() - worker.since > self.timeout:
                done, _ = ray.wait([worker.calls[0][0]], timeout=0)
                if not done:
                    self._replace(worker, now, f"Timeout: no result within {self.timeout:g} s", late=True)
        if not ready and not any(worker.node for worker in self.workers):
            self._check_started()

    def _patience(self) -> float | None:
        started = [worker for worker in self.workers if worker.node]
        if not started:
            return PATIENCE
        busy = [worker.since for worker in started if worker.calls]
        return max(0.0, min(busy) + self.timeout - time.monotonic()) if self.timeout and busy else None

    def _check_started(self) -> None:
        if time.monotonic() - min(worker.since for worker in self.workers) > PATIENCE:
            free, total = ray.available_resources(), ray.cluster_resources()
            told = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
            raise RuntimeError(f"ray: no worker could start within {PATIENCE:g} s; free in the cluster: {told}")

    def _take(self, worker: Worker, answer: Any, now: Exchange | None) -> None:
        position = worker.calls[0][1]
        try:
            result = ray.get(answer)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, RayError):  # the worker is gone, or its answer with its node
                return self._replace(worker, now, describe(cause))
            if position is None:
                raise RuntimeError(f"ray: a worker could not start: {describe(cause)}") from error
            result = describe(cause)
        worker.calls.popleft()
        worker.since = time.monotonic()
        if position is None:
            worker.node, self.failed = result, 0
        elif now is not None:
            self._keep(position, result, now.uploads)

    def _keep(self, position: int, result: Any, uploads: Uploads) -> None:
        if isinstance(result, str):
            uploads.faults[position] = result
            return
        up, mem, buffers, loss = result
        for target, z in zip(uploads.up, up, strict=True):
            as_bytes(target[position])[:] = z
        as_bytes(uploads.buffers[position])[:] = buffers
        uploads.losses[position] = loss
        if mem is not None:
            slot = uploads.slots[position] = self.store.stage()
            for target, z in zip(self.store.slot_record(slot), mem, strict=True):
                as_bytes(target)[:] = z

    def _replace(self, worker: Worker, now: Exchange | None, why: str, late: bool = False) -> None:
        """A new worker for one that is gone; the clients that it held wait again."""
        with contextlib.suppress(RayError):
            ray.kill(worker.actor)
        self.workers.remove(worker)
        if not worker.node:
            self.failed += 1
            if self.failed >= DEATHS * (len(self.workers) + 1):
                raise RuntimeError(f"ray: {self.failed} workers in a row died before they had started: {why}")
        held = [position for _, position in worker.calls if position is not None]
        if held and now is not None:
            now.deaths[held[0]] += self._is_alive(worker.node)  # a node's death is not the fault of a client
            if late:
                now.uploads.faults[held.pop(0)] = why
            elif now.deaths[held[0]] >= DEATHS:
                now.uploads.faults[held.pop(0)] = f"WorkerDied: {DEATHS} workers died on this client ({why})"
            now.waiting.extendleft(reversed(held))
        self.workers.append(self._start())

    def _is_alive(self, node: str) -> bool:
        return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(RayError):
                ray.kill(worker.actor)
        self.disconnect()
