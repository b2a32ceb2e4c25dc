"""Runs the clients on several devices of this machine at once, usually GPUs.

Every device has a copy of the model and runs one client at a time. One thread of this process drives each device. Threads
are enough, because torch releases Python's lock while it computes. Forked processes would not work: a process that has used
a GPU cannot hand it on to its children. Each GPU has its own generator of random numbers, so dropout draws the same numbers
as with one GPU.

The uploads come to the first device and are used in the order of the clients. So the bits are those of `sequential` on one
of these devices, as long as the devices are of the same kind.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core.device import record_to, to_device
from fedkeel.core.flat import FlatModel, copy_of
from fedkeel.core.torch_private import DROPOUTS
from fedkeel.engine.client_work import ClientResult, ClientTask, ClientWork, Exchange
from fedkeel.engine.runners.runner import Sequential
from fedkeel.engine.state.store import Store

AHEAD = 2  # clients per device that may be finished, or running, before their turn: they hold memory until then


def check_devices(module: nn.Module, devices: Sequence[torch.device]) -> None:
    """Refuses devices on which the clients would not all get the same numbers."""
    listed = ", ".join(map(str, devices))
    if len({device.type for device in devices}) > 1:
        raise ValueError(f"devices = {listed} is not allowed: they must be of one kind, because kinds round differently")
    if len(set(devices)) < len(devices) and _draws(module):
        raise ValueError(
            f"devices = {listed} is not allowed for a model with dropout: two clients would draw from one generator at once"
        )


def _draws(module: nn.Module) -> bool:
    """Does the model have dropout? Recurrent layers have it as a number, as attention does."""
    return any(
        (isinstance(part, DROPOUTS) and part.p > 0) or (isinstance(rate := getattr(part, "dropout", 0), float) and rate > 0)
        for part in module.modules()
    )


def work_on(work: ClientWork, device: torch.device) -> ClientWork:
    """A copy of the work with a model of its own on the device."""
    objective, model = work.objective, work.objective.model
    loss = copy.deepcopy(objective.loss).to(device) if isinstance(objective.loss, nn.Module) else objective.loss
    flat = FlatModel(copy_of(model.module).to(device), bool(model.private))
    return dataclasses.replace(work, objective=dataclasses.replace(objective, model=flat, loss=loss))


class Place:
    """One device: the work on it, and what the server sends to the clients of the present exchange."""

    def __init__(self, work: ClientWork) -> None:
        self.work, self.device = work, work.objective.model.device
        self.exchange: Exchange | None = None
        self.down: Any = None
        self.buffers: Tensor | None = None

    def run(self, exchange: Exchange, task: ClientTask, mem: Any, home: torch.device) -> ClientResult:
        """Runs a client. The result is a copy on the device `home`; only the client's record is in host memory."""
        with torch.no_grad(), torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            if self.exchange is not exchange:
                self.exchange = exchange
                self.down, self.buffers = record_to(exchange.down, self.device), to_device(exchange.buffers, self.device)
            result = self.work.run_client(task, self.down, self.buffers, mem)  # type: ignore[arg-type]
            return ClientResult(
                up=_copied(result.up, home),
                mem=_copied(result.mem, torch.device("cpu")),
                buffers=result.buffers.to(home, copy=True),
                loss=result.loss,
            )


def _copied(record: Any, device: torch.device) -> Any:
    return None if record is None else type(record)(*(z.to(device, copy=True) for z in record))


class Devices(Sequential):
    """As Sequential, but clients run ahead on all devices."""

    def __init__(self, work: ClientWork, store: Store, devices: Sequence[torch.device]) -> None:
        check_devices(work.objective.model.module, devices)
        super().__init__(work, store)
        self.home, self.count = work.objective.model.device, len(devices)
        self.free: queue.SimpleQueue[Place] = queue.SimpleQueue()  # the devices on which no client runs
        for one in [work, *(work_on(work, device) for device in devices[1:])]:
            self.free.put(Place(one))
        self.pool = ThreadPoolExecutor(self.count, initializer=partial(torch.set_num_threads, 1))

    def _calls(self, exchange: Exchange) -> Iterator[tuple[ClientTask, Callable[[], ClientResult]]]:
        started: deque[tuple[ClientTask, Future[ClientResult]]] = deque()
        for task in exchange.tasks():
            started.append((task, self.pool.submit(self._run, exchange, task)))
            if len(started) > AHEAD * self.count:
                first, future = started.popleft()
                yield first, future.result
        for first, future in started:
            yield first, future.result

    def _run(self, exchange: Exchange, task: ClientTask) -> ClientResult:
        place = self.free.get()
        try:
            return place.run(exchange, task, self.store.read(task.client), self.home)
        finally:
            self.free.put(place)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
