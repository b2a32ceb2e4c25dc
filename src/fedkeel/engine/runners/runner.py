"""A runner runs the clients of an exchange.

Here: what every runner offers, the simplest one (one client after the other, in this process), and the choice of the runner
that `engine=` names. The other runners have files of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fedkeel.engine.client_work import ClientWork, Exchange, RecordStack, Uploads
from fedkeel.engine.machine import cores
from fedkeel.engine.state.store import Store
from fedkeel.errors import describe


class Runner(Protocol):
    """Runs all clients of an exchange and returns what they upload."""

    def run(self, exchange: Exchange) -> Uploads: ...

    def close(self) -> None: ...


class Remote(Protocol):
    """Clients on other machines, which keep their records themselves."""

    name: str  # for the summary of the run
    store: Any  # used instead of a Store; its slots are numbers of records that lie with the clients

    def begin(self, work: ClientWork, initial: Any) -> Runner:
        """initial: the record of a client that takes part for the first time."""


class Sequential:
    """Runs one client after the other, in this process."""

    def __init__(self, work: ClientWork, store: Store) -> None:
        self.work, self.store = work, store

    def run(self, exchange: Exchange) -> Uploads:
        S, b = len(exchange.ids), len(exchange.buffers)
        stack: RecordStack | None = None
        uploads = Uploads(None, torch.zeros(S, b, dtype=torch.float64), torch.zeros(S).double(), {}, {})
        tasks = exchange.tasks()
        for task, samples in zip(tasks, self.work.samples(tasks), strict=True):
            position, mem = task.position, self.store.read(task.client)
            try:
                result = self.work.run_client(task, exchange.down, exchange.buffers, mem, samples)
                stack = stack or RecordStack(result.up, S)
                stack.put(position, result.up)
            except Exception as error:  # whatever a client's code raises is that client's fault
                uploads.faults[position] = describe(error)
                uploads.cause = uploads.cause or error
                continue
            uploads.buffers[position] = result.buffers
            uploads.losses[position] = result.loss
            if result.mem is not None:
                slot = uploads.slots[position] = self.store.stage()
                self.store.write(slot, result.mem)
        uploads.up = stack.record if stack else None
        return uploads

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
