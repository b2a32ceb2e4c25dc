"""Runs one client after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from fedkeel.engine.client_work import ClientResult, ClientTask, ClientWork, Exchange, RecordStack, Uploads
from fedkeel.engine.state.store import Store
from fedkeel.errors import describe


class Sequential:
    def __init__(self, work: ClientWork, store: Store) -> None:
        self.work, self.store = work, store

    def run(self, exchange: Exchange) -> Uploads:
        S, b = len(exchange.ids), len(exchange.buffers)
        stack: RecordStack | None = None
        uploads = Uploads(None, exchange.buffers.new_zeros(S, b), torch.zeros(S).double(), {}, {})
        for task, run_client in self._calls(exchange):
            position = task.position
            try:
                result = run_client()
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

    def _calls(self, exchange: Exchange) -> Iterator[tuple[ClientTask, Callable[[], ClientResult]]]:
        """Every task, and a function that returns its result or raises."""
        tasks = exchange.tasks()
        for task, samples in zip(tasks, self.work.samples(tasks), strict=True):
            mem = self.store.read(task.client)
            yield task, partial(self.work.run_client, task, exchange.down, exchange.buffers, mem, samples)

    def close(self) -> None:
        pass
