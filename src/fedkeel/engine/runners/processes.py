"""Runs the clients in worker processes with one thread each.

The process that calls `run` is the driver. It forks the workers once. So they have the model, the loss and the data of the
run without pickling. What the server sends, the uploads and the clients' records lie in shared memory (`Shared` and the
store); a pipe between the driver and each worker carries only small messages.

An exchange goes like this:

1. The driver writes what the server sends into shared memory, and cuts the tasks of all clients into portions.
2. It sends the list of all portions to every worker.
3. Each worker takes the next ticket, which is the number of a portion, and runs the clients of that portion, until no ticket
   is left. The results go into shared memory.
4. Each worker sends one message: which clients failed, and why. Until then the driver sleeps, so it takes no core from
   the workers.

If the server step needs only sums, and the uploads of all clients would take much memory, the shared memory has only a
few places for uploads, and clients reuse them. The driver then sends each worker one client at a time, in the order of the
clients. It adds uploads up in the same order, and gives their places to the next clients. Only the driver
changes the sums, so a worker that dies cannot damage them.

A worker that dies is the engine's fault, not the client's: the driver starts a new worker and runs the lost clients again,
with the same bits. A client fails if its code raises, if its result is not finite, if three workers die in one exchange
while they run it, or if it runs longer than `timeout`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.engine.client_work import ClientTask, ClientWork, Exchange, Samples, Uploads
from fedkeel.engine.forked import defer_ctrl_c, die_with
from fedkeel.engine.state.store import Layout, Store, shared_block
from fedkeel.engine.totals import Totals, room
from fedkeel.errors import describe

# Places for uploads: one per worker, and spare ones. A finished upload keeps its place until all earlier clients are added.
# If clients differ in their steps, that takes long, and with few places workers would stand still.
AHEAD, UNEQUAL = 2, 4  # places beside one per worker; places per worker if clients differ in their steps
DEATHS = 3  # a client on which this many workers die in one exchange is dropped from the round
FETCHING = 5  # a worker that is between two clients for longer than this many timeouts is stuck, and is replaced
NOTHING = -1  # instead of a position: the worker is between two clients


class StoredTask(NamedTuple):
    """A client's task, and where its record lies in the store."""

    task: ClientTask
    read_slot: int | None  # None: the client has no record yet
    write_slot: int | None  # None: clients of this method keep nothing
    place: int  # the row of the shared uploads that takes this client's upload


class Shared(NamedTuple):
    """The memory that the driver shares with its W workers. S is the largest number of clients in an exchange."""

    down: Any  # the record that the server sends
    uploads: dict[str, Any]  # stage -> record of [S, ...]; rows that nobody writes to take no memory
    buffers: Tensor  # [b] the model's buffers that the server sends
    new_buffers: Tensor  # [S, b] those that the clients send back
    losses: Tensor  # [S]
    finished: Tensor  # [S] 1 as soon as the result of this position is complete
    current: Tensor  # [W] the position of the client that a worker runs, or NOTHING
    since: Tensor  # [W] when the worker began with that client, or ended the one before, in seconds of time.monotonic


def shared_memory(work: ClientWork, down: Any, S: int, W: int) -> Shared:
    """One zeroed block of memory, viewed as `Shared`. `down` only says which form the server's record has."""
    b = len(work.objective.model.read_buffers())

    def empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")  # has a shape, but takes no memory

    uploads = {
        stage: type(up)(*(empty(S, *z.shape, dtype=z.dtype) for z in up)) for stage, up in work.upload_templates().items()
    }
    layout = Layout(
        Shared(
            down=down,
            uploads=uploads,
            buffers=empty(b),
            new_buffers=empty(S, b),
            losses=empty(S),
            finished=empty(S, dtype=torch.int64),
            current=empty(W, dtype=torch.int64),
            since=empty(W),
        )
    )
    shared: Shared = layout.view(shared_block(layout.nbytes))
    return shared


def in_portions(tasks: list[StoredTask], workers: int) -> list[list[StoredTask]]:
    """First one large portion per worker, two thirds of its share: fetching the samples of several clients together is
    faster. Then single clients, so that all workers finish at about the same time, even if one of them is slower than the
    others. Clients with many steps come first in both parts."""
    tasks = sorted(tasks, key=lambda stored: -stored.task.K)
    large = 2 * len(tasks) // (3 * workers) * workers
    together = [tasks[number:large:workers] for number in range(workers)] if large else []
    return together + [[task] for task in tasks[large:]]


@dataclass
class Worker:
    number: int
    process: Any
    pipe: Connection
    busy: bool = False  # the driver has sent it portions, and waits for its message


class Processes:
    def __init__(
        self, work: ClientWork, store: Store, down: Any, S: int, workers: int, timeout: float | None = None
    ) -> None:
        if work.objective.model.device.type != "cpu":
            raise ValueError("engine: 'processes' runs on the CPU only; use 'sequential' on another device")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError("engine: 'processes' needs a system that can fork; use 'sequential' here")
        self.work, self.store, self.timeout = work, store, timeout
        self.context = multiprocessing.get_context("fork")
        self.shared = shared_memory(work, down, S, workers)
        # The same memory as numpy arrays, whose single numbers are faster to read and write.
        self.finished, self.current, self.since = (
            z.numpy() for z in (self.shared.finished, self.shared.current, self.shared.since)
        )
        self.tickets = Tickets(S)
        self.workers: list[Worker] = []
        for number in range(workers):
            self.workers.append(self._start(number))

    def _start(self, number: int) -> Worker:
        ours, theirs = self.context.Pipe()
        others = [worker.pipe for worker in self.workers] + [ours]
        self.current[number] = NOTHING
        process = self.context.Process(target=self._serve, args=(number, theirs, others, os.getpid()), daemon=True)
        with defer_ctrl_c():
            process.start()
        theirs.close()
        return Worker(number, process, ours)

    # In a worker --------------------------------------------------------------------------------------------------

    def _serve(self, number: int, pipe: Connection, others: list[Connection], driver: int) -> None:
        """What a worker does from its start to its end."""
        die_with(driver)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for other in others:  # otherwise this process would keep its siblings' pipes open after the driver's death
            other.close()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver has closed the pipe
            while True:
                portions, faults = pipe.recv(), {}  # type: tuple[Any, dict[int, str]]
                if isinstance(portions, StoredTask):
                    self._run_portion(number, [portions], faults)
                else:
                    while (ticket := self.tickets.take()) < len(portions):
                        self._run_portion(number, portions[ticket], faults)
                pipe.send(faults)
        os._exit(0)

    def _run_portion(self, number: int, portion: list[StoredTask], faults: dict[int, str]) -> None:
        # Fetching belongs to no client: an error here ends the worker, and no client is late because of it.
        fetched = self.work.samples([stored.task for stored in portion])
        for stored, samples in zip(portion, fetched, strict=True):
            position = stored.task.position
            self.since[number], self.current[number] = time.monotonic(), position
            fault = self._run_client(stored, samples)
            self.since[number], self.current[number] = time.monotonic(), NOTHING
            if fault is None:
                self.finished[position] = 1
            else:
                faults[position] = fault

    def _run_client(self, stored: StoredTask, samples: Samples) -> str | None:
        """Leaves the client's result in shared memory. Returns why it failed, or None."""
        task, shared = stored.task, self.shared
        try:
            mem = self.store.slot_record(stored.read_slot)
            result = self.work.run_client(task, shared.down, shared.buffers, mem, samples)
            for target, z in zip(shared.uploads[task.stage], result.up, strict=True):
                target[stored.place] = z
            shared.new_buffers[task.position] = result.buffers
            shared.losses[task.position] = result.loss
            if stored.write_slot is not None:
                self.store.write(stored.write_slot, result.mem)
        except Exception as error:
            return describe(error)
        return None

    # In the driver ------------------------------------------------------------------------------------------------

    def run(self, exchange: Exchange) -> Uploads:
        n, shared = len(exchange.ids), self.shared
        for target, z in zip(shared.down, exchange.down, strict=True):
            target.copy_(z)
        shared.buffers.copy_(exchange.buffers)
        stack = shared.uploads[exchange.stage]
        up = type(stack)(*(z[:n] for z in stack))
        # Views of shared memory. They are valid until the next call.
        uploads = Uploads(up, shared.new_buffers[:n], shared.losses[:n], {}, {})
        tasks: list[StoredTask] = []
        for task in exchange.tasks():
            slot = None if self.store.initial is None else self.store.stage()
            if slot is not None:
                uploads.slots[task.position] = slot
            tasks.append(StoredTask(task, self.store.live.get(task.client), slot, task.position))
        self.finished[:] = 0
        like = type(stack)(*(z[0] for z in stack))
        W = len(self.workers)
        places = max(W + AHEAD if len(set(exchange.K)) == 1 else UNEQUAL * W, room(like))
        if exchange.sums is None or places >= n:
            self._run_all(tasks, uploads.faults)
        else:
            uploads.up, uploads.totals = None, Totals(exchange.sums, like)
            self._run_in_order(tasks, places, uploads.totals, uploads.faults)
        return uploads

    def _run_in_order(self, tasks: list[StoredTask], places: int, totals: Totals, faults: dict[int, str]) -> None:
        """Runs all tasks, and adds up their uploads in the order of the positions. After a fault the sums are of no use, but
        all clients still run: each of them may have a fault of its own."""
        deaths: Counter[int] = Counter()  # position -> workers that died there
        waiting, free = deque(tasks), list(range(places))
        held: dict[int, StoredTask] = {}  # number of a worker -> what it runs
        done: dict[int, int] = {}  # position -> the place of its upload
        position, stack = 0, self.shared.uploads[tasks[0].task.stage]  # the next upload to add
        while waiting or held:
            for worker in [worker for worker in self.workers if not worker.busy]:
                # The first client that is not done has a place, or is the next to get one: so nobody waits forever.
                while waiting and waiting[0].task.position in faults:
                    waiting.popleft()
                if waiting and free:
                    held[worker.number] = waiting.popleft()._replace(place=free.pop())
                    self._send(worker, held[worker.number])
            for worker in self._wait():
                if self._hear(worker, tasks, faults, deaths).busy:
                    continue
                stored = held.pop(worker.number)
                if stored.task.position in faults:
                    free.append(stored.place)
                elif self.finished[stored.task.position]:
                    done[stored.task.position] = stored.place
                else:  # it is lost with its worker
                    free.append(stored.place)
                    waiting.appendleft(stored)
            while position in done or position in faults:
                if not faults:
                    totals.put(position, type(stack)(*(z[done[position]] for z in stack)))
                if position in done:
                    free.append(done.pop(position))
                position += 1

    def _run_all(self, tasks: list[StoredTask], faults: dict[int, str]) -> None:
        """Runs all tasks. Those that are lost with a worker are run in another pass."""
        deaths: Counter[int] = Counter()  # position -> workers that died there
        while tasks:
            portions = in_portions(tasks, len(self.workers))
            self.tickets.restart()
            for worker in self.workers:
                self._send(worker, portions)
            while busy := self._wait():
                for worker in busy:
                    new = self._hear(worker, tasks, faults, deaths)
                    if new is not worker and self._unfinished(tasks, faults):
                        self._send(new, portions)  # it takes only portions that nobody has taken
            tasks = self._unfinished(tasks, faults)

    def _wait(self) -> list[Worker]:
        """Waits until a worker sends a message, dies, or may be late. Returns all busy workers."""
        if busy := [worker for worker in self.workers if worker.busy]:
            wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], timeout=self._time_left(busy))
        return busy

    def _hear(self, worker: Worker, tasks: list[StoredTask], faults: dict[int, str], deaths: Counter[int]) -> Worker:
        """Takes the worker's message, if there is one. Returns the worker, or a new one if it was late or is dead."""
        if late := self._is_late(worker):
            worker.process.kill()
            worker.process.join()
        self._receive(worker, faults)
        if not late and (not worker.busy or worker.process.is_alive()):
            return worker
        # Between the check and the kill, the worker may have finished the late client and begun another. Then nobody is
        # late, and the other client runs again.
        self._blame(worker, tasks, faults, deaths, late and self._is_late(worker))
        return self._replace(worker)

    def _unfinished(self, tasks: list[StoredTask], faults: dict[int, str]) -> list[StoredTask]:
        return [z for z in tasks if not self.finished[z.task.position] and z.task.position not in faults]

    def _send(self, worker: Worker, portions: list[list[StoredTask]] | StoredTask) -> None:
        worker.busy = True
        self.since[worker.number] = time.monotonic()
        # If the worker is dead, its sentinel wakes the driver.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send(portions)

    def _receive(self, worker: Worker, faults: dict[int, str]) -> None:
        """Takes the worker's message, if there is one."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            if worker.pipe.poll():
                faults |= worker.pipe.recv()
                worker.busy = False

    def _time_left(self, busy: list[Worker]) -> float | None:
        """Seconds until the first worker may exceed the timeout; None without a timeout."""
        if self.timeout is None:
            return None
        return max(0.0, min(self._deadline(worker) for worker in busy) - time.monotonic())

    def _is_late(self, worker: Worker) -> bool:
        return self.timeout is not None and worker.busy and time.monotonic() > self._deadline(worker)

    def _deadline(self, worker: Worker) -> float:
        """When the worker is late. Between two clients it fetches samples, which may take longer than a client."""
        assert self.timeout is not None
        between = self.current[worker.number] == NOTHING
        return float(self.since[worker.number]) + self.timeout * (FETCHING if between else 1)

    def _blame(
        self, worker: Worker, tasks: list[StoredTask], faults: dict[int, str], deaths: Counter[int], late: bool
    ) -> None:
        """Counts a worker's death, and gives up the client that it died on if too many workers did.

        If too many workers die between two clients, the next unfinished client is given up. Otherwise the driver would start
        workers for ever on a machine that kills each of them.
        """
        position, code = int(self.current[worker.number]), worker.process.exitcode
        deaths[position] += 1
        if position == NOTHING:
            limit = DEATHS * len(self.workers)
            blamed = [stored.task.position for stored in self._unfinished(tasks, faults)]
        else:
            limit, blamed = DEATHS, [position]
        if late and position != NOTHING:
            faults[position] = f"Timeout: no result within {self.timeout:g} s"
        elif blamed and deaths[position] >= limit:
            when = "before they could run a client" if position == NOTHING else "on this client"
            faults[blamed[0]] = f"WorkerDied: {deaths[position]} workers died {when} (exit code {code})"

    def _replace(self, worker: Worker) -> Worker:
        """Starts a new worker in place of a dead one."""
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        self.workers.append(self._start(worker.number))
        return self.workers[-1]

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.busy:  # the run has failed, so nobody needs its results
                worker.process.kill()
        for worker in self.workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.tickets.close()


class Tickets:
    """The numbers 0, 1, 2, ... n - 1. Each call of `take`, in whatever process, gets the next one; after the last it gets n.

    The numbers stand in a file, and forked processes share its read position. The kernel moves that position, so you may
    kill a process at any moment. A lock would stay locked if its holder were killed.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        if sys.platform == "linux":
            self.file = os.memfd_create("tickets")
        else:
            self.file, path = tempfile.mkstemp()
            os.unlink(path)
        os.write(self.file, b"".join(number.to_bytes(4, "little") for number in range(n)))
        self.restart()

    def restart(self) -> None:
        """The next call of `take` gets 0 again."""
        os.lseek(self.file, 0, os.SEEK_SET)

    def take(self) -> int:
        ticket = os.read(self.file, 4)
        return int.from_bytes(ticket, "little") if ticket else self.n

    def close(self) -> None:
        os.close(self.file)
