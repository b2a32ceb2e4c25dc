"""One client after the other, in this process."""

from __future__ import annotations

import torch

from fedkeel.engine.client_work import Jobs, Stack, Uploads, Work
from fedkeel.engine.state.store import Store
from fedkeel.errors import describe


class Sequential:
    def __init__(self, work: Work, store: Store) -> None:
        self.work, self.store = work, store

    def run(self, jobs: Jobs) -> Uploads:
        S = len(jobs.ids)
        stack: Stack | None = None
        uploads = Uploads(None, torch.zeros(S, len(jobs.buffers), dtype=torch.float64), torch.zeros(S).double(), {}, {})
        fetched = self.work.samples(jobs.t, jobs.ids, jobs.K)
        for position, (client, samples) in enumerate(zip(jobs.ids, fetched, strict=True)):
            drawn = jobs.roles(position)
            mem = self.store.read(client)
            try:
                result = self.work.one(
                    jobs.stage, jobs.t, client, jobs.K[position], drawn, jobs.down, jobs.buffers, mem, samples
                )
                stack = stack or Stack(result.up, S)
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
