"""Runs one client after the other, in this process."""

from __future__ import annotations

import torch

from fedkeel.engine.client_work import ClientWork, Exchange, RecordStack, Uploads
from fedkeel.engine.state.store import Store
from fedkeel.engine.totals import Totals, room
from fedkeel.errors import describe


class Sequential:
    def __init__(self, work: ClientWork, store: Store) -> None:
        self.work, self.store = work, store

    def run(self, exchange: Exchange) -> Uploads:
        S, b = len(exchange.ids), len(exchange.buffers)
        stack: RecordStack | Totals | None = None
        uploads = Uploads(None, torch.zeros(S, b, dtype=torch.float64), torch.zeros(S).double(), {}, {})
        tasks = exchange.tasks()
        for task, samples in zip(tasks, self.work.samples(tasks), strict=True):
            position, mem = task.position, self.store.read(task.client)
            try:
                result = self.work.run_client(task, exchange.down, exchange.buffers, mem, samples)
                if stack is None:
                    sums = exchange.sums if room(result.up) < S else None
                    stack = RecordStack(result.up, S) if sums is None else Totals(sums, result.up)
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
        if isinstance(stack, Totals):
            uploads.totals = stack
        elif stack is not None:
            uploads.up = stack.record
        return uploads

    def close(self) -> None:
        pass
