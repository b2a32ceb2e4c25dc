"""Runs all clients of an exchange at once: the gradient is vmapped over them, and the method's code runs on [S, d]."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkeel.core.device import at_border, check_device, stacked_on, to_device, to_host, wait_for
from fedkeel.core.many_clients import ManyClients, ManyOracle
from fedkeel.core.records import check_finite, rows_outside
from fedkeel.core.steps import at_once
from fedkeel.core.torch_private import BATCH_NORMS, DROPOUTS
from fedkeel.data.dataset_pool import DatasetPool
from fedkeel.engine import seeding
from fedkeel.engine.client_work import ClientWork, Exchange, RecordStack, Uploads
from fedkeel.engine.state.store import Store
from fedkeel.errors import NotFinite, describe


class Vectorized:
    """Clients with the same number of local steps form a group, and a group is one call of the method. A loss that needs
    whole batches splits the groups further, by the number of samples."""

    def __init__(self, work: ClientWork, store: Store, compiled: bool = False) -> None:
        model = work.objective.model
        reason = "its normalisation layers stay with the clients" if model.private else cannot_vectorize(model.module)
        if work.objective.step is not None:
            reason = "step= computes one batch of one client"
        if isinstance(work.fed.x, DatasetPool):
            reason = "data sets are read one batch at a time"
        if work.objective.precision is not None:
            reason = f"with precision = {work.objective.precision!r} it would round differently"
        self.work, self.store = work, store
        reason = reason or self._why_not()
        if reason:
            name = "compiled" if compiled else "vectorized"
            raise ValueError(f"engine: {name!r} cannot run this model: {reason}; use 'sequential' or 'processes'")
        self.largest = int(
            work.fed.sizes.max()
        )  # samples of a client; computed once, because the cost of a round must not grow with N
        self.oracle = ManyOracle(work.objective, compiled)

    def _why_not(self) -> str | None:
        """Why torch cannot run this model for two clients at once, or None: it draws random numbers in `forward`, say."""
        model, fed = self.work.objective.model, self.work.fed
        rows = [fed.rows(0, np.arange(min(2, fed.size(0))))] * 2
        try:
            ManyOracle(self.work.objective).outputs(model.vector().expand(2, -1), self._padded(fed.x, fed.y, rows)[0])
        except Exception as error:
            return describe(error)
        return None

    def run(self, exchange: Exchange) -> Uploads:
        S = len(exchange.ids)
        stack: RecordStack | None = None
        uploads = Uploads(None, torch.zeros(S, 0, dtype=torch.float64), torch.zeros(S).double(), {}, {})
        kinds = [self._kind(client, K) for client, K in zip(exchange.ids, exchange.K, strict=True)]
        groups = [[position for position in range(S) if kinds[position] == kind] for kind in sorted(set(kinds))]
        for positions in groups:
            K = exchange.K[positions[0]]
            ids = [exchange.ids[position] for position in positions]
            drawn = {name: z[positions] for name, z in exchange.drawn.items()}
            records = [] if self.store.initial is None else [self.store.read(client) for client in ids]
            mem = stacked_on(records, self.work.objective.model.device) if records else None
            try:
                up, new, losses = self._group(exchange, ids, K, drawn, mem)
            except Exception as error:
                if len(positions) > 1:  # one of them failed: run each alone to find out which
                    groups += [[position] for position in positions]
                else:
                    uploads.faults[positions[0]] = describe(error)
                    uploads.cause = uploads.cause or error
                continue
            bad = not_finite(up, new) | rows_outside(up, new)
            bad |= dict.fromkeys(losses.isinf().nonzero().flatten().tolist(), "NotFinite: its loss is infinite")
            uploads.faults |= {positions[row]: why for row, why in bad.items()}
            rows = [row for row in range(len(positions)) if row not in bad]
            places = [positions[row] for row in rows]
            stack = stack or RecordStack(type(up)(*(z[0] for z in up)), S)
            stack.put(places, up if not bad else type(up)(*(z[rows] for z in up)))
            kept = to_host(new)
            wait_for(self.work.objective.model.device)
            uploads.losses[places] = losses[rows].cpu().double()
            if kept is not None:
                for row, position in zip(rows, places, strict=True):
                    slot = uploads.slots[position] = self.store.stage()
                    self.store.write(slot, type(kept)(*(z[row] for z in kept)))
        uploads.up = stack.record if stack else None
        return uploads

    def _kind(self, client: int, K: int) -> tuple[int, int]:
        """Clients of the same kind can run at once: they have equally many steps, and equally large batches unless short
        batches can be padded."""
        return K, self.work.fed.size(client) if self.work.objective.each is None else 0

    def _group(
        self, exchange: Exchange, ids: Sequence[int], K: int, drawn: dict[str, np.ndarray], mem: Any
    ) -> tuple[Any, Any, Tensor]:
        """Runs clients with the same K at once; mem is [S, ...] -> (up, mem, losses [S])."""
        work, model = self.work, self.work.objective.model
        numbers = [work.batch_numbers(exchange.t, client, K) for client in ids]
        x, y, rows = self._pool(exchange.t, ids, [order for order, _ in numbers])
        parts = [_cut(mine, sizes) for mine, (_, sizes) in zip(rows, numbers, strict=True)]
        if len(numbers[0][1]) < K:
            batches = [self._padded(x, y, rows)] * K
        elif work.objective.each is None:  # without padding, which the loss would count
            batches = [self._padded(x, y, [part[k] for part in parts]) for k in range(K)]
        else:
            # The same shape in every round, so that a compiled gradient is compiled once.
            width = None if work.batch_size is None else min(work.batch_size, self.largest)
            everything = self._padded(x, y, [part[k] for k in range(K) for part in parts], width)
            batches = list(zip(*(z.view(K, len(ids), *z.shape[1:]) for z in everything), strict=True))
        roles = {
            name: to_device(torch.as_tensor(z, dtype=model.dtype).unsqueeze(-1), model.device) for name, z in drawn.items()
        }
        steps = ManyClients(
            work.objective,
            exchange.t,
            self.oracle,
            len(ids),
            batches,
            lambda: self._everything(ids),
            SimpleNamespace(**roles),
        )
        steps.seeds = lambda: [seeding.method_seed(work.seed, exchange.t, client) for client in ids]
        down = at_border("sent record", exchange.down, model.device)
        check_device("client record", mem, model.device)
        up, new = getattr(work.method_at(exchange.t, exchange.lr_factor), exchange.stage)(down, mem, steps)
        check_device("upload", up, model.device)
        check_device("new client record", new, model.device)
        losses = torch.stack(steps.losses).double().mean(0) if steps.losses else torch.full((len(ids),), torch.nan)
        return up, new, losses

    def _pool(self, t: int, ids: Sequence[int], numbers: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, list[np.ndarray]]:
        """(x, y, rows of every client): x[rows[j]] are the samples of client ids[j]."""
        fed = self.work.fed
        if fed.augment is None:
            rows = [fed.rows(client, mine) for client, mine in zip(ids, numbers, strict=True)]
            return fed.x, fed.y, rows
        pairs = [fed.take(client, mine) for client, mine in zip(ids, numbers, strict=True)]
        changed = [self.work.augmented(t, client, x) for client, (x, _) in zip(ids, pairs, strict=True)]
        ends = np.cumsum([len(y) for _, y in pairs])
        return torch.cat(changed), torch.cat([y for _, y in pairs]), np.split(np.arange(ends[-1]), ends[:-1])

    def _padded(
        self, x: Tensor, y: Tensor, rows: Sequence[np.ndarray], width: int | None = None, of: Sequence[np.ndarray] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of several clients as [S, B, ...]; short ones repeat their first row with weight 0.

        of: all rows of each client, if `rows` are only a part and the mean is over all.
        """
        width = width or max(map(len, rows))
        if not of and all(len(mine) == width for mine in rows):
            index, weight = np.stack(rows), np.full((len(rows), width), 1 / width)
        else:
            index = np.zeros((len(rows), width), dtype=np.int64)
            weight = np.zeros((len(rows), width))
            for j, (mine, whole) in enumerate(zip(rows, of or rows, strict=True)):
                index[j] = mine[0] if len(mine) else whole[0]
                index[j, : len(mine)] = mine
                weight[j, : len(mine)] = 1 / len(whole)
        model, chosen = self.work.objective.model, torch.from_numpy(index.reshape(-1))
        x, y = self.work.cast(x.index_select(0, chosen), y.index_select(0, chosen))
        return (
            x.view(*index.shape, *x.shape[1:]),
            y.view(*index.shape, *y.shape[1:]),
            to_device(torch.as_tensor(weight, dtype=model.dtype), model.device),
        )

    def _everything(self, ids: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        fed = self.work.fed
        chunk = at_once(self.work.cast(fed.x[:1], fed.y[:1])[0])
        rows = [fed.rows(client, np.arange(fed.size(client))) for client in ids]
        return [
            self._padded(fed.x, fed.y, [mine[start : start + chunk] for mine in rows], of=rows)
            for start in range(0, max(map(len, rows)), chunk)
        ]

    def close(self) -> None:
        pass


def _cut(rows: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Pieces of these sizes. numpy's split would take a few hundredths of a small round."""
    return [rows[start:stop] for start, stop in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


def not_finite(up: Any, new: Any) -> dict[int, str]:
    """Rows of records [S, ...] that contain NaN or infinity, and why."""
    sums = torch.stack([z.flatten(1).sum(1).float() for record in (up, new) if record is not None for z in record])
    found = {}
    for row in (~sums.isfinite().all(0)).nonzero().flatten().tolist():  # the sum of finite numbers may also overflow
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
        if isinstance(part, DROPOUTS) and part.p > 0:
            return "its dropout would draw other numbers than one client at a time"
        if isinstance(part, BATCH_NORMS):
            return f"{type(part).__name__} would see the padding of short batches"
        if isinstance(part, nn.RNNBase):
            return f"torch has no batching rule for {type(part).__name__} layers and would run them several times slower"
    return None
