"""One client after the other, in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkeel.engine.store import Store
from fedkeel.engine.work import Jobs, Uploads, Work


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


class Stack:
    """Uploads of the clients of a round as a record of [S, ...]."""

    def __init__(self, template: Any, S: int) -> None:
        self.record = type(template)(*(z.new_empty((S, *z.shape)) for z in template))

    def put(self, position: int | list[int], record: Any) -> None:
        """A client's record at its position, or a record of [n, ...] at so many positions."""
        for name, target, z in zip(self.record._fields, self.record, record, strict=True):
            if z.shape[-target.dim() + 1 :] != target.shape[1:] or z.dim() + isinstance(position, int) != target.dim():
                raise ValueError(f"{name} has shape {list(z.shape)}, others {list(target.shape[1:])}")
            target[position] = z


def describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def stacked(records: list[Any]) -> Any:
    """Records -> one record of [S, ...]."""
    fields: list[Tensor] = [torch.stack(z) for z in zip(*records, strict=True)]
    return type(records[0])(*fields)
