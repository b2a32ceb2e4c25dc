"""Clients spread over worker processes with one thread each.

Workers are forked, so whatever model, loss or data the run was given is there without being pickled. What is sent down,
uploads and client memory lie in shared memory; a pipe per worker carries only numbers. A worker that dies is an engine
fault: it is started again and its clients are run again, with the same bits. One that dies on the same client again and
again, or takes longer than `timeout` over it, makes that a client fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedkeel.engine.memory import Layout, shared_block, tensor_in
from fedkeel.engine.sequential import describe
from fedkeel.engine.settings import check_workers
from fedkeel.engine.store import Store
from fedkeel.engine.work import Jobs, Uploads, Work

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
DEATHS = 3  # of workers over one client, until the client is given up for the round
AHEAD = 2  # tasks a worker holds, so that it never waits for the next one


def die_with(driver: int) -> None:
    """Ends this worker with the driver, even in the middle of a client: a resumed run may already write to the slot of
    the store that it was going to fill. Elsewhere than on Linux it lives until it has finished the client."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != driver:  # it was too fast for us
        os._exit(0)


@dataclass
class Worker:
    process: Any
    pipe: Connection
    tasks: deque[tuple[Any, ...]] = field(default_factory=deque)  # sent and not answered, oldest first
    since: float = 0.0  # when the oldest of them was begun


class Processes:
    def __init__(self, work: Work, store: Store, down: Any, S: int, workers: int, timeout: float | None = None) -> None:
        if work.objective.model.device.type != "cpu":
            raise ValueError("engine: 'processes' runs on the CPU only; use 'sequential' on another device")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("engine: 'processes' needs a system that can fork; use 'sequential' here")
        check_workers(workers, timeout)
        self.work, self.store, self.timeout = work, store, timeout
        self.context = multiprocessing.get_context("fork")
        self._share(down, S)
        self.workers: list[Worker] = []
        for _ in range(workers):
            self.workers.append(self._start())

    def _share(self, down: Any, S: int) -> None:
        """Shared memory for what is sent down, and for the uploads of both kinds of rounds."""
        b = len(self.work.objective.model.read_buffers())
        uploads = self.work.uploads()
        layouts = [Layout(down)] + [Layout(up, S) for up in uploads.values()]
        memory = shared_block(sum(layout.nbytes for layout in layouts) + 8 * (b + S * b + S))
        records, at = [], 0
        for layout in layouts:
            records.append(layout.view(memory, at))
            at += layout.nbytes
        self.down, self.up = records[0], dict(zip(uploads, records[1:], strict=True))
        self.buffers = tensor_in(memory, at, (b,), torch.float64)
        self.new_buffers = tensor_in(memory, at + 8 * b, (S, b), torch.float64)
        self.losses = tensor_in(memory, at + 8 * (b + S * b), (S,), torch.float64)

    def _start(self) -> Worker:
        ours, theirs = self.context.Pipe()
        others = [worker.pipe for worker in self.workers] + [ours]
        process = self.context.Process(target=self._serve, args=(theirs, others, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours)

    def _serve(self, pipe: Connection, others: list[Connection], driver: int) -> None:
        """The life of a worker: read a task, run the client, leave the result in shared memory."""
        die_with(driver)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
        for other in others:  # or this process would keep its siblings' pipes open after the driver's death
            other.close()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                position, *rest, read_slot, write_slot = pipe.recv()
                pipe.send((position, self._work_on(position, *rest, read_slot, write_slot)))
        os._exit(0)

    def _work_on(
        self,
        position: int,
        stage: str,
        t: int,
        client: int,
        K: int,
        drawn: dict[str, float],
        read_slot: int | None,
        write_slot: int | None,
    ) -> str | None:
        try:
            mem = self.store.slot_record(read_slot)
            result = self.work.one(stage, t, client, K, drawn, self.down, self.buffers, mem)
            for target, z in zip(self.up[stage], result.up, strict=True):
                target[position] = z
            self.new_buffers[position] = result.buffers
            self.losses[position] = result.loss
            if write_slot is not None:
                self.store.write(write_slot, result.mem)
        except Exception as error:
            return describe(error)
        return None

    def run(self, jobs: Jobs) -> Uploads:
        S = len(jobs.ids)
        for target, z in zip(self.down, jobs.down, strict=True):
            target.copy_(z)
        self.buffers.copy_(jobs.buffers)
        record = self.up[jobs.stage]
        stacks = type(record)(*(z[:S] for z in record))
        uploads = Uploads(stacks, self.new_buffers[:S], self.losses[:S], {}, {})
        tasks = []
        for position, client in enumerate(jobs.ids):
            drawn = {name: float(z[position]) for name, z in jobs.drawn.items()}
            slot = None if self.store.initial is None else self.store.stage()
            if slot is not None:
                uploads.slots[position] = slot
            tasks.append((position, jobs.stage, jobs.t, client, jobs.K[position], drawn, self.store.live.get(client), slot))
        # The longest first, so that the workers end together.
        self._distribute(deque(sorted(tasks, key=lambda task: -task[4])), uploads.faults)
        return uploads

    def _distribute(self, tasks: deque[tuple[Any, ...]], faults: dict[int, str]) -> None:
        deaths: dict[int, int] = {}
        while tasks or any(worker.tasks for worker in self.workers):
            for worker in self.workers:
                while tasks and len(worker.tasks) < AHEAD:
                    self._send(worker, tasks.popleft())
            busy = [worker for worker in self.workers if worker.tasks]
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=self._patience(busy))
            for worker in busy:
                self._collect(worker, faults)
                late = self.timeout and worker.tasks and time.monotonic() - worker.since > self.timeout
                if late:
                    worker.process.kill()
                    worker.process.join()
                if late or worker.process.sentinel in ready or not worker.process.is_alive():
                    self._collect(worker, faults)  # what it had answered before it died
                    self._replace(worker, tasks, faults, deaths, bool(late))

    def _send(self, worker: Worker, task: tuple[Any, ...]) -> None:
        if not worker.tasks:
            worker.since = time.monotonic()
        worker.tasks.append(task)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then its sentinel is ready, too
            worker.pipe.send(task)

    def _patience(self, busy: list[Worker]) -> float | None:
        if self.timeout is None:
            return None
        return max(0.0, min(worker.since for worker in busy) + self.timeout - time.monotonic())

    def _collect(self, worker: Worker, faults: dict[int, str]) -> None:
        with contextlib.suppress(EOFError, ConnectionResetError):
            while worker.tasks and worker.pipe.poll():
                position, fault = worker.pipe.recv()
                worker.tasks.popleft()
                worker.since = time.monotonic()
                if fault is not None:
                    faults[position] = fault

    def _replace(
        self, worker: Worker, tasks: deque[tuple[Any, ...]], faults: dict[int, str], deaths: dict[int, int], late: bool
    ) -> None:
        """A new process for a worker that is gone; what it held goes back to the tasks."""
        held = worker.tasks
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode
        if held:
            position = held[0][0]
            deaths[position] = deaths.get(position, 0) + 1
            if late:
                faults[position] = f"Timeout: no result within {self.timeout:g} s"
                held.popleft()
            elif deaths[position] >= DEATHS:
                faults[position] = f"WorkerDied: {DEATHS} workers died on this client (exit code {code})"
                held.popleft()
        tasks.extendleft(reversed(held))
        self.workers.remove(worker)
        self.workers.append(self._start())

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.tasks:  # the run has failed: nobody waits for these
                worker.process.kill()
        for worker in self.workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
