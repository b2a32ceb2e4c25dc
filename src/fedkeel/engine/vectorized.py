"""All clients of a round at once: the gradient is vmapped over them, everything else runs on [S, d] as it is written."""

from __future__ import annotations

import torch
from torch import nn

from fedkeel.core.steps import ManyOracle
from fedkeel.engine.sequential import Stack, describe, stacked
from fedkeel.engine.store import Store
from fedkeel.engine.work import Jobs, NotFinite, Uploads, Work, check_finite


class Vectorized:
    """Clients are grouped by their number of local steps; a group is one call of the algorithm."""

    def __init__(self, work: Work, store: Store, compiled: bool = False) -> None:
        reason = cannot_vectorize(work.objective.model.module)
        if reason:
            name = "compiled" if compiled else "vectorized"
            raise ValueError(f"engine: {name!r} cannot run this model: {reason}; use 'sequential' or 'processes'")
        self.work, self.store = work, store
        self.oracle = ManyOracle(work.objective, compiled)

    def run(self, jobs: Jobs) -> Uploads:
        S = len(jobs.ids)
        stack: Stack | None = None
        uploads = Uploads(None, torch.zeros(S, 0, dtype=torch.float64), torch.zeros(S).double(), {}, {})
        groups = [[position for position in range(S) if jobs.K[position] == K] for K in sorted(set(jobs.K))]
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
                continue
            for row, position in enumerate(positions):
                mine = type(up)(*(z[row] for z in up))
                kept = None if new is None else type(new)(*(z[row] for z in new))
                try:
                    check_finite(mine, kept)
                except NotFinite as error:
                    uploads.faults[position] = describe(error)
                    continue
                stack = stack or Stack(mine, S)
                stack.put(position, mine)
                uploads.losses[position] = losses[row]
                if kept is not None:
                    slot = uploads.slots[position] = self.store.stage()
                    self.store.write(slot, kept)
        uploads.up = stack.record if stack else None
        return uploads

    def close(self) -> None:
        pass


def cannot_vectorize(module: nn.Module) -> str | None:
    """Why a model cannot be run for many clients at once, or None."""
    if any(b.numel() for b in module.buffers()):
        return "it has buffers (normalisation statistics)"
    if hasattr(module, "one_by_one"):  # the model itself says why
        return str(module.one_by_one)
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return "its dropout would draw other numbers than one client at a time"
        if isinstance(part, nn.RNNBase):
            return f"torch has no batching rule for {type(part).__name__} layers and would run them several times slower"
    return None
