"""The two halves of GradMA (Luo et al. 2023), each used by two methods: the worker's steps and the server's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedkeel.core.steps import Steps
from fedkeel.rules.cone_qp import cone_weights, project

BLOCK = 4096  # columns of the memory in float64 at a time
HEAVIEST = 1e30  # the largest weight in float32; larger ones would overflow


def worker_update(x: Tensor, x_old: Tensor, steps: Steps, lr: float) -> Tensor:
    """Algorithm 2: local SGD from x whose every direction agrees with three others, all on the step's own batch.

    They are the gradient at the previous iterate (x_old before the first step), the gradient at x and the way from x.
    """
    w, before, way = steps.copy(x), steps.copy(x_old), steps.copy(x)
    for k, grad in enumerate(steps):
        p = grad(w)
        # In step 0, w equals x. So the gradient is p itself, which adds no constraint, and the displacement is zero.
        # In step 1 the previous iterate is x.
        columns = [] if k == 1 else [grad(before)]
        columns += [grad(x), torch.sub(w, x, out=way)] if k else []
        u = project(p, columns)
        w, before = torch.sub(w, steps.clip(u), alpha=lr, out=before), w
    return w


class Memory(NamedTuple):
    """Up to m remembered displacements, with the Gram matrix of their rows. An empty row has id -1.

    The true memory of a client is scale * D: a row that only decays is not touched, so its Gram entries stay as they are.
    """

    D: Tensor  # [m, d]
    gram: Tensor  # [m, m] float64
    scale: Tensor  # [m] float64
    ids: Tensor  # [m] int64, the client of each row
    visits: Tensor  # [m] int64, rounds in which it took part while remembered
    since: Tensor  # [m] int64, the round in which it was put in

    @classmethod
    def empty(cls, x: Tensor, m: int) -> Memory:
        whole = torch.zeros(m, dtype=torch.int64, device=x.device)
        gram = torch.zeros(m, m, dtype=torch.float64, device=x.device)
        return cls(x.new_zeros(m, len(x)), gram, gram.new_zeros(m), whole - 1, whole, whole)


def reduce_memory(memory: Memory, clients: Sequence[int], t: int) -> tuple[Memory, list[int]]:
    """Algorithm 4: a row for every participant, at the cost of the least active absent ones -> (memory, rows)."""
    ids, count, since = (z.tolist() for z in (memory.ids, memory.visits, memory.since))
    row_of = {client: row for row, client in enumerate(ids) if client >= 0}
    free = [row for row, client in enumerate(ids) if client < 0]
    for client in clients:
        if client not in row_of:
            if free:
                row = free.pop(0)
            else:
                absent = [row for other, row in row_of.items() if other not in clients]
                row = min(absent, key=lambda row: (count[row], since[row], ids[row]))
                del row_of[ids[row]]
            row_of[client] = row
            ids[row], count[row], since[row] = client, 0, t
            memory.scale[row] = 0.0  # forgets what the row held
        count[row_of[client]] += 1
    whole = [torch.tensor(z, dtype=torch.int64, device=memory.ids.device) for z in (ids, count, since)]
    return memory._replace(ids=whole[0], visits=whole[1], since=whole[2]), [row_of[client] for client in clients]


def server_update(memory: Memory, momentum: Tensor, dx: Tensor, rows: list[int], beta2: float) -> tuple[Memory, Tensor]:
    """Algorithm 3: remembers dx [S, d] in `rows` and turns the momentum [d] to agree with all that is remembered."""
    D, gram, scale = memory.D, memory.gram, memory.scale
    scale *= beta2
    for row, z in zip(rows, dx, strict=True):
        D[row].mul_(float(scale[row])).add_(z)
    scale[rows] = 1.0
    # For beta2 > 0 the direction of an absent client stays a constraint, however short it becomes. For 0 it is gone.
    live = (memory.ids >= 0).nonzero().flatten().tolist() if beta2 > 0 else sorted(rows)
    held = (
        D[: len(live)] if live == list(range(len(live))) else D[live]
    )  # rows fill up from the first, so this is hardly ever a copy
    at = torch.tensor([live.index(row) for row in rows], device=D.device)
    fresh = torch.zeros(len(rows), len(live), dtype=torch.float64, device=D.device)
    q = torch.zeros(len(live), dtype=torch.float64, device=D.device)
    for start in range(0, D.shape[1], BLOCK):
        part = held[:, start : start + BLOCK].double()
        fresh += part[at] @ part.T
        q += part @ momentum[start : start + BLOCK].double()
    changed, kept = torch.tensor(rows, device=D.device), torch.tensor(live, device=D.device)
    gram[changed[:, None], kept] = fresh
    gram[kept[:, None], changed] = fresh.T
    z = cone_weights(gram[kept[:, None], kept].cpu().numpy(), q.cpu().numpy(), float(momentum.double().norm()))
    used = [row for row, weight in zip(live, z, strict=True) if weight > 0]
    if used:
        # Short rows have weights that float32 cannot hold.
        dtype = D.dtype if z.max() < HEAVIEST else torch.float64
        weights = torch.as_tensor(z[z > 0], dtype=dtype, device=D.device)
        momentum = (momentum + weights @ D[used].to(dtype)).to(D.dtype)
    return memory, momentum
