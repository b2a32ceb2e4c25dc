"""Clients spread over worker processes with one thread each.

Workers are forked, so whatever model, loss or data the run was given is there without being pickled. What is sent down,
uploads and client memory lie in shared memory; a pipe per worker carries only numbers: the tasks of the round in portions,
of which each worker draws the next one until none is left, and then one answer, so that the driver does not take a core
from them.
A worker that dies is an engine fault: it is started again and its client is run again, with the same bits. If workers die
on the same client again and again, or one takes longer than `timeout` over it, that is a client fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from fedkeel.engine.client_work import Jobs, Samples, Uploads, Work
from fedkeel.engine.state.shared_memory import Layout, Tickets, shared_block, tensor_in
from fedkeel.engine.state.store import Store
from fedkeel.errors import describe

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
DEATHS = 3  # of workers over one client, until the client is given up for the round
NOTHING = -1  # instead of a position: between two clients


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes after a fork and not during it, when the child would show a traceback and the parent might not see it. A
    child that is to ignore it does so from its first moment."""
    if threading.current_thread() is not threading.main_thread():  # only that one is interrupted
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)  # None: set by another language
        if came:
            signal.raise_signal(signal.SIGINT)


def die_with(driver: int) -> None:
    """Ends this worker with the driver, even in the middle of a client: a resumed run may already write to the slot of
    the store that it was going to fill. Elsewhere than on Linux it lives until it has finished the client."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != driver:  # it was too fast for us
        os._exit(0)


class Task(NamedTuple):
    """A client to be run."""

    position: int  # in the round
    stage: str
    t: int
    client: int
    K: int
    drawn: dict[str, float]
    read_slot: int | None  # of the store
    write_slot: int | None


def in_portions(tasks: list[Task], workers: int) -> list[list[Task]]:
    """Two thirds of a worker's share at once, since samples of several clients are fetched faster together; then one by one,
    the longest first, so that the workers end together even if one of them has but half a core."""
    tasks = sorted(tasks, key=lambda task: -task.K)
    large = 2 * len(tasks) // (3 * workers) * workers
    together = [tasks[number:large:workers] for number in range(workers)] if large else []
    return together + [[task] for task in tasks[large:]]


@dataclass
class Worker:
    number: int
    process: Any
    pipe: Connection
    busy: bool = False  # has tasks and has not answered


class Processes:
    def __init__(self, work: Work, store: Store, down: Any, S: int, workers: int, timeout: float | None = None) -> None:
        if work.objective.model.device.type != "cpu":
            raise ValueError("engine: 'processes' runs on the CPU only; use 'sequential' on another device")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("engine: 'processes' needs a system that can fork; use 'sequential' here")
        self.work, self.store, self.timeout = work, store, timeout
        self.context = multiprocessing.get_context("fork")
        self._share(down, S, workers)
        self.workers: list[Worker] = []
        for number in range(workers):
            self.workers.append(self._start(number))

    def _share(self, down: Any, S: int, workers: int) -> None:
        """Shared memory for what is sent down, for the uploads of all kinds of rounds, and for who does what."""
        b = len(self.work.objective.model.read_buffers())
        uploads = self.work.uploads()
        layouts = [Layout(down)] + [Layout(up, S) for up in uploads.values()]
        memory = shared_block(sum(layout.nbytes for layout in layouts) + 8 * (b + S * b + 2 * S + 2 * workers))
        records, at = [], 0
        for layout in layouts:
            records.append(layout.view(memory, at))
            at += layout.nbytes
        self.down, self.up = records[0], dict(zip(uploads, records[1:], strict=True))
        self.buffers = tensor_in(memory, at, (b,), torch.float64)
        self.new_buffers = tensor_in(memory, at + 8 * b, (S, b), torch.float64)
        self.losses = tensor_in(memory, at + 8 * (b + S * b), (S,), torch.float64)
        at += 8 * (b + S * b + S)
        self.tickets = Tickets(S)
        self.done = tensor_in(memory, at, (S,), torch.int64).numpy()  # 1: the result of this position is there
        self.doing = tensor_in(memory, at + 8 * S, (workers,), torch.int64).numpy()  # the position that a worker is at
        self.since = tensor_in(memory, at + 8 * (S + workers), (workers,), torch.float64).numpy()  # when it began that

    def _start(self, number: int) -> Worker:
        ours, theirs = self.context.Pipe()
        others = [worker.pipe for worker in self.workers] + [ours]
        self.doing[number] = NOTHING
        process = self.context.Process(target=self._serve, args=(number, theirs, others, os.getpid()), daemon=True)
        with interrupts_wait():
            process.start()
        theirs.close()
        return Worker(number, process, ours)

    def _serve(self, number: int, pipe: Connection, others: list[Connection], driver: int) -> None:
        """The life of a worker: draw a portion, run its clients, leave the results in shared memory."""
        die_with(driver)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
        for other in others:  # or this process would keep its siblings' pipes open after the driver's death
            other.close()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            while True:
                portions, faults = pipe.recv(), {}  # type: tuple[Any, dict[int, str]]
                while (ticket := self.tickets.draw()) < len(portions):
                    self._run_portion(number, portions[ticket], faults)
                pipe.send(faults)
        os._exit(0)

    def _run_portion(self, number: int, portion: list[Task], faults: dict[int, str]) -> None:
        fetched = self.work.samples(portion[0].t, [task.client for task in portion], [task.K for task in portion])
        for task, samples in zip(portion, fetched, strict=True):
            self.since[number], self.doing[number] = time.monotonic(), task.position
            fault = self._work_on(task, samples)
            self.doing[number] = NOTHING
            if fault is None:
                self.done[task.position] = 1
            else:
                faults[task.position] = fault

    def _work_on(self, task: Task, samples: Samples) -> str | None:
        try:
            position, stage, t, client, K, drawn, read_slot, write_slot = task
            mem = self.store.slot_record(read_slot)
            result = self.work.one(stage, t, client, K, drawn, self.down, self.buffers, mem, samples)
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
        tasks: list[Task] = []
        for position, client in enumerate(jobs.ids):
            drawn = jobs.roles(position)
            slot = None if self.store.initial is None else self.store.stage()
            if slot is not None:
                uploads.slots[position] = slot
            read = self.store.live.get(client)
            tasks.append(Task(position, jobs.stage, jobs.t, client, jobs.K[position], drawn, read, slot))
        self._distribute(tasks, uploads.faults)
        return uploads

    def _distribute(self, tasks: list[Task], faults: dict[int, str]) -> None:
        """Runs them all; what is lost with a worker is run in another pass."""
        deaths: Counter[int] = Counter()
        self.done[:] = 0
        while tasks:
            portions = in_portions(tasks, len(self.workers))
            self.tickets.restart()
            for worker in self.workers:
                self._send(worker, portions)
            while busy := [worker for worker in self.workers if worker.busy]:
                wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=self._patience(busy))
                for worker in busy:
                    if late := self._is_late(worker):
                        worker.process.kill()
                        worker.process.join()
                    self._collect(worker, faults)
                    if late or (worker.busy and not worker.process.is_alive()):
                        # It may have gone on to another client just before it was killed.
                        self._blame(worker, tasks, faults, deaths, late and self._is_late(worker))
                        new = self._replace(worker)
                        if self._left(tasks, faults):
                            self._send(new, portions)
            tasks = self._left(tasks, faults)

    def _left(self, tasks: list[Task], faults: dict[int, str]) -> list[Task]:
        return [task for task in tasks if not self.done[task.position] and task.position not in faults]

    def _send(self, worker: Worker, portions: list[list[Task]]) -> None:
        worker.busy = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then its sentinel is ready, too
            worker.pipe.send(portions)

    def _collect(self, worker: Worker, faults: dict[int, str]) -> None:
        with contextlib.suppress(EOFError, ConnectionResetError):
            if worker.pipe.poll():
                faults |= worker.pipe.recv()
                worker.busy = False

    def _patience(self, busy: list[Worker]) -> float | None:
        """How long nobody can be late."""
        if self.timeout is None:
            return None
        now = time.monotonic()
        begun = [self.since[w.number] if self.doing[w.number] != NOTHING else now for w in busy]
        return max(0.0, float(min(begun)) + self.timeout - now)

    def _is_late(self, worker: Worker) -> bool:
        if self.timeout is None or self.doing[worker.number] == NOTHING:
            return False
        return bool(time.monotonic() - self.since[worker.number] > self.timeout)

    def _blame(self, worker: Worker, tasks: list[Task], faults: dict[int, str], deaths: Counter[int], late: bool) -> None:
        """Notes the client that a worker died on. Many who die before they begin one count for the next client in turn,
        so that a machine on which no worker can live ends the run."""
        at, code = int(self.doing[worker.number]), worker.process.exitcode
        deaths[at] += 1
        if at == NOTHING:
            limit, blamed = DEATHS * len(self.workers), [task.position for task in self._left(tasks, faults)]
        else:
            limit, blamed = DEATHS, [at]
        if late:
            faults[at] = f"Timeout: no result within {self.timeout:g} s"
        elif blamed and deaths[at] >= limit:
            faults[blamed[0]] = f"WorkerDied: {deaths[at]} workers died on this client (exit code {code})"

    def _replace(self, worker: Worker) -> Worker:
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        self.workers.append(self._start(worker.number))
        return self.workers[-1]

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.busy:  # the run has failed: nobody waits for these
                worker.process.kill()
        for worker in self.workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.tickets.close()
