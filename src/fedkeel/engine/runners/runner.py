"""A runner runs the clients of an exchange.

Here: what every runner offers, the simplest one (one client after the other, in this process), and the choice of the runner
that `engine=` names. The other runners have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedkeel.engine.client_work import ClientResult, ClientTask, ClientWork, Exchange, RecordStack, Uploads
from fedkeel.engine.machine import cores
from fedkeel.engine.state.store import Store
from fedkeel.engine.totals import Totals
from fedkeel.errors import describe


class Runner(Protocol):
    """Runs all clients of an exchange and returns what they upload."""

    def run(self, exchange: Exchange) -> Uploads: ...

    def close(self) -> None: ...


class Remote(Protocol):
    """Clients on other machines, which keep their records themselves."""

    name: str  # for the summary of the run
    store: Any  # used instead of a Store; its slots are numbers of records that lie with the clients
    channel: Any  # the run's Channel, if it has one: clients compress and add noise themselves

    def begin(self, work: ClientWork, initial: Any) -> Runner:
        """initial: the record of a client that takes part for the first time."""

    def validate(
        self, t: int, x: Tensor, buffers: Tensor, lr_factor: float, single: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Loss and accuracy of the model x on the clients' held-out samples, and further columns of the history.

        single: the columns describe the scores of single clients, too.
        """


@dataclass
class Answers:
    """What came of an exchange."""

    exchange: Exchange  # with the clients of the last attempt
    uploads: Uploads  # of the last attempt; positions are those of `exchange`
    faults: dict[str, str]  # client -> why it failed, in any attempt
    cause: Exception | None  # the first fault, if it happened in this process

    @classmethod
    def of(cls, exchange: Exchange, uploads: Uploads) -> Answers:
        """Of an exchange that ran once."""
        faults = {str(exchange.ids[position]): why for position, why in sorted(uploads.faults.items())}
        return cls(exchange, uploads, faults, uploads.cause)


class Sequential:
    """Runs one client after the other, in this process."""

    def __init__(self, work: ClientWork, store: Store) -> None:
        self.work, self.store = work, store

    def run(self, exchange: Exchange) -> Uploads:
        S, b = len(exchange.ids), len(exchange.buffers)
        stack: RecordStack | Totals | None = None
        uploads = Uploads(None, exchange.buffers.new_zeros(S, b), torch.zeros(S).double(), {}, {})
        for task, run_client in self._calls(exchange):
            position = task.position
            try:
                result = run_client()
                if stack is None:
                    stack = RecordStack(result.up, S) if exchange.sums is None else Totals(exchange.sums, result.up)
                stack.put(position, result.up)
            except (Exception, SystemExit) as error:  # whatever a client's code raises is that client's fault
                uploads.faults[position] = describe(error)
                uploads.cause = uploads.cause or (error if isinstance(error, Exception) else None)
                continue
            uploads.buffers[position] = result.buffers
            uploads.losses[position] = result.loss
            if result.mem is not None:
                slot = uploads.slots[position] = self.store.stage()
                self.store.write(slot, result.mem)
        if isinstance(stack, Totals):
            uploads.totals = stack
        elif stack is not None:
            uploads.up = stack.record
        return uploads

    def _calls(self, exchange: Exchange) -> Iterator[tuple[ClientTask, Callable[[], ClientResult]]]:
        """Every task, and a function that returns its result or raises."""
        tasks = exchange.tasks()
        for task, samples in zip(tasks, self.work.samples(tasks), strict=True):
            mem = self.store.read(task.client)
            yield task, partial(self.work.run_client, task, exchange.down, exchange.buffers, mem, samples)

    def close(self) -> None:
        pass


@dataclass
class EngineChoice:
    """The engine that the user named. `start` replaces the name `auto` by the engine that it chooses."""

    name: str
    workers: int | None
    timeout: float | None
    ray: dict[str, str]  # address and device
    remote: Remote | None = None
    devices: tuple[torch.device, ...] = ()  # several devices of this machine, each of which runs clients
    why: str = ""  # the reason, if the engine was chosen automatically

    def __post_init__(self) -> None:
        if self.remote is not None:
            self.name = self.remote.name

    def start(self, work: ClientWork, store: Any, initial: Any, first: Exchange, S: int, rounds: int) -> Runner:
        """Starts the runner. Imports no other runner than that.

        first: an exchange like those to come.  S: the most clients of an exchange.  rounds: how many are still to run.
        """
        if self.remote is not None:
            return self.remote.begin(work, initial)
        if self.devices:
            from fedkeel.engine.runners.devices import Devices

            self.name, self.why = "devices", ", ".join(map(str, self.devices))
            return Devices(work, store, self.devices)
        if self.name == "devices":  # the run began with several devices, and goes on with one; the bits are the same
            self.name, self.why = "sequential", "the run began on several devices"
        if self.name == "auto" and self.timeout is not None:
            self.name, self.why = "processes", "a time limit needs worker processes"
        if self.name == "auto":
            from fedkeel.engine.runners import auto

            self.name, self.why = auto.choose(work, store, first, rounds, self.workers)
        if self.name == "processes":
            from fedkeel.engine.runners.processes import Processes

            return Processes(work, store, first.down, S, min(self.workers or cores(), S), self.timeout)
        if self.name == "ray":
            from fedkeel.engine.runners.ray import Ray

            return Ray(work, store, S, self.workers, self.timeout, **self.ray)
        if self.name == "sequential":
            return Sequential(work, store)
        from fedkeel.engine.runners.vectorized import Vectorized

        return Vectorized(work, store, compiled=self.name == "compiled")
