"""All clients of a round at once: the gradient is vmapped over them, everything else runs on [S, d] as it is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedkeel.core.many import ManyOracle
from fedkeel.engine.sequential import Stack, describe, stacked
from fedkeel.engine.store import Store
from fedkeel.engine.work import Jobs, NotFinite, Uploads, Work, check_finite


class Vectorized:
    """Clients are grouped by their number of local steps, and by their batches where a loss needs whole ones; a group is one
    call of the algorithm."""

    def __init__(self, work: Work, store: Store, compiled: bool = False) -> None:
        model = work.objective.model
        reason = "its normalisation layers stay with the clients" if model.private else cannot_vectorize(model.module)
        if reason:
            name = "compiled" if compiled else "vectorized"
            raise ValueError(f"engine: {name!r} cannot run this model: {reason}; use 'sequential' or 'processes'")
        self.work, self.store = work, store
        self.oracle = ManyOracle(work.objective, compiled)

    def run(self, jobs: Jobs) -> Uploads:
        S = len(jobs.ids)
        stack: Stack | None = None
        uploads = Uploads(None, torch.zeros(S, 0, dtype=torch.float64), torch.zeros(S).double(), {}, {})
        kinds = [self._kind(client, K) for client, K in zip(jobs.ids, jobs.K, strict=True)]
        groups = [[position for position in range(S) if kinds[position] == kind] for kind in sorted(set(kinds))]
        for positions in groups:
            K = jobs.K[positions[0]]
            ids = [jobs.ids[position] for position in positions]
            drawn = {name: z[positions] for name, z in jobs.drawn.items()}
            mem = None if self.store.initial is None else stacked([self.store.read(client) for client in ids])
            try:
                up, new, losses = self.work.group(jobs, ids, K, drawn, mem, self.oracle)
            except Exception as error:
                if len(positions) > 1:  # one of them is to blame: each on its own
                    groups += [[position] for position in positions]
                else:
                    uploads.faults[positions[0]] = describe(error)
                    uploads.cause = uploads.cause or error
                continue
            bad = not_finite(up, new)
            uploads.faults |= {positions[row]: why for row, why in bad.items()}
            rows = [row for row in range(len(positions)) if row not in bad]
            places = [positions[row] for row in rows]
            stack = stack or Stack(type(up)(*(z[0] for z in up)), S)
            stack.put(places, up if not bad else type(up)(*(z[rows] for z in up)))
            uploads.losses[places] = losses[rows].double()
            if new is not None:
                for row, position in zip(rows, places, strict=True):
                    slot = uploads.slots[position] = self.store.stage()
                    self.store.write(slot, type(new)(*(z[row] for z in new)))
        uploads.up = stack.record if stack else None
        return uploads

    def _kind(self, client: int, K: int) -> tuple[int, int]:
        """Clients of one kind can be run at once: with as many steps, and batches as large unless they can be padded."""
        return K, self.work.fed.size(client) if self.work.objective.each is None else 0

    def close(self) -> None:
        pass


def not_finite(up: Any, new: Any) -> dict[int, str]:
    """Rows of records [S, ...] that contain NaN or infinity, and why."""
    sums = torch.stack([z.flatten(1).sum(1).float() for record in (up, new) if record is not None for z in record])
    found = {}
    for row in (~sums.isfinite().all(0)).nonzero().flatten().tolist():  # or a sum that overflows
        try:
            check_finite(*(None if record is None else type(record)(*(z[row] for z in record)) for record in (up, new)))
        except NotFinite as error:
            found[row] = describe(error)
    return found


def cannot_vectorize(module: nn.Module) -> str | None:
    """Why a model cannot be run for many clients at once, or None."""
    if any(b.numel() for b in module.buffers()):
        return "it has buffers (normalisation statistics)"
    if hasattr(module, "one_by_one"):  # the model itself says why
        return str(module.one_by_one)
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return "its dropout would draw other numbers than one client at a time"
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return f"{type(part).__name__} would see the padding of short batches"
        if isinstance(part, nn.RNNBase):
            return f"torch has no batching rule for {type(part).__name__} layers and would run them several times slower"
    return None
