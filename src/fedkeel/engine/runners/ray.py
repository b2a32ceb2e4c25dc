"""Runs the clients in the actors of a Ray cluster, on this machine or on many.

An actor is a process with one thread that holds the model and the data. The data lie in Ray's object store, once per node.
The process that calls `run` is the driver. Once per exchange it puts what the server sends into the object store; uploads
and new client records come back. Client memory stays with the driver, so nothing is lost when a node dies: other nodes run
its clients again, with the same bits. The nodes do not add uploads up, because a sum in another order has other bits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fedkeel.engine.client_work import ClientWork, Exchange, RecordStack, Uploads
from fedkeel.engine.machine import cores
from fedkeel.engine.runners.ray_actor import Actor, Answer, SentTask, as_bytes, pack, record_bytes
from fedkeel.engine.runners.ray_token import protect_new_cluster
from fedkeel.engine.state.store import Store
from fedkeel.errors import describe

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError:
    raise ImportError("engine: 'ray' needs the package ray: pip install 'fedkeel[ray]'") from None

DEATHS = 3  # this many workers may die on a client before the client is dropped from the round
AHEAD = 2  # calls that a worker holds, so that it need not wait for the next one
WORTH = 0.1  # seconds of work that a call should hold: sending it takes a few milliseconds
PATIENCE = 300.0  # seconds within which at least one worker must start


def connect(address: str, cpus: int | None = None) -> Callable[[], None]:
    """Joins the cluster at `address`, or starts one on this machine ("local"). Returns a function that undoes this. It does
    not stop a cluster, or close a connection of this process, that was there before."""
    if ray.is_initialized():
        ours = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", ours):
            raise ValueError(f"ray_address = {address!r} is not allowed: this process is already connected to {ours}")
        return lambda: None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise a cluster that we start would report to Ray's makers
    options: dict[str, Any] = {"num_cpus": cpus or cores(), "include_dashboard": False} if address == "local" else {}
    forget = protect_new_cluster() if address == "local" else None
    try:
        host, colon, port = address.rpartition(":")
        if colon and "://" not in address:  # a wrong address fails at once; Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray warns of changes in later releases
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except Exception as error:
        if forget is not None:
            forget()
        raise ValueError(f"ray_address = {address!r}: no cluster can be used there: {describe(error)}") from error
    if forget is None:
        return ray.shutdown

    def end() -> None:
        ray.shutdown()
        forget()

    return end


def resources(S: int, workers: int | None, device: str) -> tuple[int, dict[str, Any]]:
    """The number of workers, and what each needs from Ray: a core, and a GPU if there are any. If there are more workers
    than GPUs, several share one."""
    total = ray.cluster_resources()
    cpus, gpus = int(total.get("CPU", 0)), 0 if device == "cpu" else int(total.get("GPU", 0))
    if cpus < 1:
        raise ValueError("engine: 'ray': the cluster has no CPU for a worker")
    if not gpus and torch.device("cpu" if device == "auto" else device).type == "cuda":
        raise ValueError(f"device = {device!r} is not allowed with engine = 'ray' here: the cluster has no GPU")
    count = min(workers or gpus or cpus, cpus, S)
    return count, {"num_cpus": 1, "num_gpus": 1 / -(-count // gpus) if gpus else 0}


@dataclass
class Worker:
    actor: Any
    calls: deque[
        tuple[Any, list[int]]
    ]  # (future answer, positions of its clients), oldest first; the call that starts the worker has no clients
    node: str = ""  # the node that it runs on; empty until it has started
    since: float = 0.0  # when its oldest call began


@dataclass
class Pending:
    """The state of one call of `run`."""

    exchange: Exchange
    down: Any  # reference to what the server sends, in the object store
    uploads: Uploads
    waiting: deque[list[int]]  # calls that no worker has yet, each with the positions of its clients
    deaths: Counter[int] = field(default_factory=Counter)  # position -> workers that died while they held it


class Ray:
    def __init__(
        self, work: ClientWork, store: Store, S: int, workers: int | None, timeout: float | None, address: str, device: str
    ) -> None:
        self.work, self.store, self.timeout = work, store, timeout
        # In host memory, where the bytes of the answers are copied to. The loop moves the uploads to the device.
        self.stacks = {stage: RecordStack(like, S).record for stage, like in work.upload_templates().items()}
        setup, data = pack(work, store.initial)  # first, so that what cannot be sent is an error before a cluster starts
        self.disconnect = connect(address, workers)
        try:
            self.setup = ray.put(setup), ray.put(data)
            count, options = resources(S, workers, device)
            self.make = ray.remote(Actor).options(max_restarts=0, scheduling_strategy="SPREAD", **options)
            self.failed = 0  # workers in a row that died before they had started
            self.step_seconds: float | None = None  # of a local step, as measured in the last answer
            self.workers: list[Worker] = []
            self.workers += [self._start() for _ in range(count)]
            while not any(worker.node for worker in self.workers):
                self._step(None)
        except BaseException:
            self.close()
            raise

    def _start(self) -> Worker:
        actor: Any = self.make.remote()
        return Worker(actor, deque([(actor.start.remote(*self.setup), [])]), since=time.monotonic())

    def run(self, exchange: Exchange) -> Uploads:
        S = len(exchange.ids)
        stack = self.stacks[exchange.stage]
        up = type(stack)(*(z[:S] for z in stack))
        losses, buffers = torch.zeros(S, dtype=torch.float64), torch.zeros(S, len(exchange.buffers), dtype=torch.float64)
        down = ray.put((record_bytes(exchange.down), as_bytes(exchange.buffers)))
        now = Pending(exchange, down, Uploads(up, buffers, losses, {}, {}), deque(self._calls(exchange)))
        while now.waiting or any(positions for worker in self.workers for _, positions in worker.calls):
            for held in range(AHEAD):  # first one call for each worker, then a second one
                for worker in self.workers:
                    if worker.node and now.waiting and len(worker.calls) == held:
                        self._send(worker, now.waiting.popleft(), now)
            self._step(now)
        return now.uploads

    def _calls(self, exchange: Exchange) -> list[list[int]]:
        """Positions of the clients of each call: one client, or several if clients are short compared with a call."""
        # Clients with many steps first, so that the workers finish at about the same time.
        order = sorted(range(len(exchange.ids)), key=lambda position: -exchange.K[position])
        count = len(order)
        if self.step_seconds is not None and self.timeout is None:  # a timeout counts for one client
            worth = int(self.step_seconds * sum(exchange.K) / WORTH)
            count = min(count, worth if worth >= 4 * len(self.workers) else len(self.workers))
        return [order[start::count] for start in range(count)]

    def _send(self, worker: Worker, positions: list[int], now: Pending) -> None:
        tasks = []
        for position in positions:
            task = now.exchange.task(position)
            mem = record_bytes(self.store.read(task.client)) if task.client in self.store else None
            tasks.append(SentTask(task, mem))
        if not worker.calls:
            worker.since = time.monotonic()
        worker.calls.append((worker.actor.run_clients.remote(now.down, tasks), positions))

    def _step(self, now: Pending | None) -> None:
        """Waits until a worker answers, takes all answers that are there, and replaces workers that are late."""
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
            listed = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
            raise RuntimeError(f"ray: no worker could start within {PATIENCE:g} s; free in the cluster: {listed}")

    def _take(self, worker: Worker, answer: Any, now: Pending | None) -> None:
        positions = worker.calls[0][1]
        try:
            result = ray.get(answer)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if positions or isinstance(cause, RayError):  # the worker is dead, or its answer is lost with its node
                return self._replace(worker, now, describe(cause))
            raise RuntimeError(f"ray: a worker could not start: {describe(cause)}") from error
        worker.calls.popleft()
        worker.since = time.monotonic()
        if not positions:
            worker.node, self.failed = result, 0
        elif now is not None:
            self.step_seconds = result.seconds / sum(now.exchange.K[position] for position in positions)
            for j, position in enumerate(positions):
                self._keep(result, j, position, now.uploads)

    def _keep(self, answer: Answer, j: int, position: int, uploads: Uploads) -> None:
        if j in answer.faults:
            uploads.faults[position] = answer.faults[j]
            return
        for target, z in zip(uploads.up, answer.up, strict=True):
            as_bytes(target[position])[:] = z[j]
        as_bytes(uploads.buffers[position])[:] = answer.buffers[j]
        uploads.losses[position] = answer.losses[j]
        if answer.mem:
            slot = uploads.slots[position] = self.store.stage()
            for target, z in zip(self.store.slot_record(slot), answer.mem, strict=True):
                as_bytes(target)[:] = z[j]

    def _replace(self, worker: Worker, now: Pending | None, why: str, late: bool = False) -> None:
        """Starts a new worker for one that is dead or late. The clients that it held wait again."""
        with contextlib.suppress(RayError):
            ray.kill(worker.actor)
        self.workers.remove(worker)
        if not worker.node:
            self.failed += 1
            if self.failed >= DEATHS * (len(self.workers) + 1):
                raise RuntimeError(f"ray: {self.failed} workers in a row died before they had started: {why}")
        elif now is not None:
            self._retry([positions for _, positions in worker.calls], now, self._is_alive(worker.node), why, late)
        self.workers.append(self._start())

    def _retry(self, calls: list[list[int]], now: Pending, guilty: bool, why: str, late: bool) -> None:
        """Puts the calls of a dead worker back. The worker died in the first of them, so its clients are tried again one by
        one, to find out which of them kills workers. guilty: False if the whole node died, which is no client's fault."""
        first, *rest = calls or [[]]
        now.deaths.update(first if guilty else [])
        now.waiting.extendleft(reversed(rest))
        if late:
            now.uploads.faults[first[0]] = why
        elif len(first) == 1 and now.deaths[first[0]] >= DEATHS:
            now.uploads.faults[first[0]] = f"WorkerDied: {DEATHS} workers died on this client ({why})"
        else:
            now.waiting.extendleft([position] for position in reversed(first))

    def _is_alive(self, node: str) -> bool:
        return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(RayError):
                ray.kill(worker.actor)
        self.disconnect()
