"""What one client does in an exchange: fetch its batches, then one call of the method.

An exchange is one trip from the server to the clients and back. A round has one exchange, or two if the method surveys its
clients first. The warm-up before the first round is a row of exchanges, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.device import to_device
from fedkeel.core.records import check_finite, check_ranges, exchanges_of, trial_upload
from fedkeel.core.steps import Objective, OneClient, Workspace, in_pieces
from fedkeel.core.torch_private import version
from fedkeel.data.dataset_pool import CHUNK, DatasetPool
from fedkeel.data.federation import Federation
from fedkeel.engine import seeding
from fedkeel.engine.state.store import ALIGN
from fedkeel.engine.totals import SumPlan, Totals
from fedkeel.errors import NotFinite

FETCH_BYTES = 1 << 24  # samples of several clients are fetched together up to this size, so that they stay in the cache


class ClientTask(NamedTuple):
    """What one client has to do in an exchange, beside what the server sends to all."""

    stage: str  # the method of the algorithm that the client runs: client, survey or warmup
    t: int  # the round; -1 is the warm-up
    client: int  # its number in the federation, 0 to N - 1
    K: int  # local steps
    roles: dict[str, float]  # what the algorithm's `draw` gave to this client
    position: int  # its place in the exchange, 0 to S - 1: the row of its upload
    lr_factor: float = 1.0  # of the run's learning-rate schedule


@dataclass
class Exchange:
    """What all clients of one exchange have to do."""

    stage: str  # the method of the algorithm that clients run: client, survey or warmup
    t: int  # the round; -1 is the warm-up
    ids: list[int]  # the clients, in increasing order
    K: list[int]  # local steps of each
    drawn: dict[str, np.ndarray]  # the clients' roles, [S] each
    down: Any  # the record that the server sends to all
    buffers: Tensor  # [b] the model's buffers
    sums: SumPlan | None = None  # if set, a runner may return totals instead of the uploads
    lr_factor: float = 1.0  # of the run's learning-rate schedule

    def task(self, position: int) -> ClientTask:
        """The part of the client at this position."""
        roles = self.roles(position)
        return ClientTask(self.stage, self.t, self.ids[position], self.K[position], roles, position, self.lr_factor)

    def tasks(self) -> list[ClientTask]:
        """The parts of all clients."""
        return [self.task(position) for position in range(len(self.ids))]

    def roles(self, position: int) -> dict[str, float]:
        """The roles of the client at this position."""
        return {name: float(z[position]) for name, z in self.drawn.items()}

    def only(self, positions: Sequence[int]) -> Exchange:
        """The same exchange with some of the clients."""
        ids, K = ([z[position] for position in positions] for z in (self.ids, self.K))
        return replace(self, ids=ids, K=K, drawn={name: z[list(positions)] for name, z in self.drawn.items()}, sums=None)


@dataclass
class Uploads:
    """What came back from the clients of an exchange. Rows of clients that failed are undefined."""

    up: Any  # record of [S, ...]; None if all clients failed, or if there are totals
    buffers: Tensor  # [S, b]
    losses: Tensor  # [S] float64, mean loss of the client's batches
    faults: dict[int, str]  # position -> why this client failed
    slots: dict[int, int]  # position -> the slot of the store that holds the client's new record
    extra_columns: dict[str, Any] = field(default_factory=dict)  # further columns for this round's row of the history
    cause: Exception | None = None  # the first fault, if it happened in this process
    totals: Totals | None = None  # the sums of the uploads, if nobody kept them; wrong if there are faults


class RecordStack:
    """Records of S clients as one record of [S, ...]."""

    def __init__(self, template: Any, S: int) -> None:
        self.record = type(template)(*(z.new_empty((S, *z.shape)) for z in template))

    def put(self, position: int | list[int], record: Any) -> None:
        """Copies one client's record to its position, or a record of [n, ...] to n positions."""
        for name, target, z in zip(self.record._fields, self.record, record, strict=True):
            if z.shape[-target.dim() + 1 :] != target.shape[1:] or z.dim() + isinstance(position, int) != target.dim():
                raise ValueError(f"{name} has shape {list(z.shape)}, others {list(target.shape[1:])}")
            target[position] = z


class PrivateLayers(NamedTuple):
    """The record of a client whose normalisation layers never leave it (FedBN)."""

    values: Tensor  # [b] parameters and statistics of the normalisation layers, float64


class Samples(NamedTuple):
    """The samples of all mini-batches of a client, one batch after the other, as the federation stores them."""

    x: Tensor
    y: Tensor
    sizes: list[int]  # of the batches; a single one with all data if every step sees the same batch


UNREAD = Samples(torch.empty(0), torch.empty(0), [])  # in the place of samples that a data set holds


@dataclass
class ClientResult:
    """What one client made. Its tensors may lie in memory that the next client overwrites."""

    up: Any  # the upload
    mem: Any  # the client's new record, in host memory
    buffers: Tensor  # [b]
    loss: float  # mean over its batches


@dataclass
class ClientWork:
    """Runs single clients. Holds everything that stays the same during a run."""

    algo: Algorithm
    fed: Federation
    objective: Objective
    seed: int
    batch_size: int | None
    lr_decay: float

    def __post_init__(self) -> None:
        self.workspace = Workspace(self.objective)

    def method_at(self, t: int, lr_factor: float) -> Algorithm:
        """The method as it is in round t. lr_factor: that of the run's learning-rate schedule."""
        now = self.algo.at(t, self.lr_decay)
        # One more round of decay by this factor: so it changes whatever decays in this method.
        return now if lr_factor == 1.0 else now.at(1, lr_factor)

    def upload_templates(self) -> dict[str, Any]:
        """stage -> a record with the shapes and dtypes of a client's upload, for every stage that the method has."""
        algo, model = self.algo, self.objective.model
        return {stage: trial_upload(algo, stage, model.layers, model.dtype) for stage in exchanges_of(algo)}

    def run_client(
        self, task: ClientTask, down: Any, buffers: Tensor, mem: Any, samples: Samples | None = None
    ) -> ClientResult:
        """Runs one client. Copy what you keep of the result: the next client may overwrite it.

        mem: the client's record.  samples: what `self.samples` yields for this task, if you have fetched that already.
        """
        if self.objective.model.device.type != "cpu":  # a GPU has a generator of its own
            return self._run_client(task, down, buffers, mem, samples)
        with seeding.GENERATORS:
            return self._run_client(task, down, buffers, mem, samples)

    def _run_client(self, task: ClientTask, down: Any, buffers: Tensor, mem: Any, samples: Samples | None) -> ClientResult:
        model = self.objective.model
        seeding.seed_torch(seeding.model_seed(self.seed, task.t, task.client), model.device)
        down, mem = model.take("sent record", down), model.take("client record", mem)
        drawn = {name: torch.tensor([value], dtype=model.dtype) for name, value in task.roles.items()}
        roles = SimpleNamespace(**{name: to_device(z, model.device) for name, z in drawn.items()})
        batches = self._batches(task, samples or next(self.samples([task])))
        steps = OneClient(self.objective, task.t, batches, lambda: self.all_data(task.client), self.workspace, roles)
        steps.seeds = lambda: [seeding.method_seed(self.seed, task.t, task.client)]
        if model.has_buffers:
            model.write_buffers(mem.values if model.private else buffers)
        given = [
            (name, z, version(z)) for record in (down, mem) if record is not None for name, z in record._asdict().items()
        ]
        local_work = getattr(self.method_at(task.t, task.lr_factor), task.stage)
        up, new = local_work(down, None if model.private else mem, steps)
        for name, z, before in given:
            if version(z) != before:  # the next client would receive the changed values
                raise ValueError(f"{name} was changed in place, but other clients use it, too; steps.copy makes a copy")
        after = model.read_buffers()
        if model.private:
            new = PrivateLayers(after)
        model.check("upload", up)
        model.check("new client record", new)
        if model.has_buffers:
            model.check_buffers(after, to_device(buffers, after.device))
        kept = model.to_host(new)  # the next line waits for the device, and so for this copy
        losses = check_finite(up, new, beside=steps.losses)
        check_ranges(up, new)
        loss = math.fsum(losses) / len(losses) if losses else math.nan
        if math.isinf(loss):  # NaN is allowed: some methods and some sites do not know a loss
            raise NotFinite("its loss is infinite")
        return ClientResult(up, kept, after, loss)

    # Batches ------------------------------------------------------------------------------------------------------

    def batch_numbers(self, t: int, client: int, K: int) -> tuple[np.ndarray, list[int]]:
        """The sample numbers of all batches of a client in a row, and the size of each batch."""
        n = self.fed.size(client)
        if (
            isinstance(self.fed.x, DatasetPool) and self.fed.x.in_order
        ):  # a stream is read on from where the last round ended
            sizes = [n] * K if self.batch_size is None else seeding.batch_sizes(n, K, self.batch_size)
            return (t * sum(sizes) + np.arange(sum(sizes))) % n, sizes
        if self.batch_size is None:  # the same batch in every step, unless every step augments it anew
            return (np.arange(n), [n]) if self.fed.augment is None else (np.tile(np.arange(n), K), [n] * K)
        return seeding.batch_order(seeding.generator(self.seed, seeding.BATCHES, t, client), n, K, self.batch_size)

    def samples(self, tasks: Sequence[ClientTask]) -> Iterator[Samples]:
        """The samples of each task. Fetches those of several clients at a time, which is faster than one by one."""
        if isinstance(self.fed.x, DatasetPool):  # `run_client` reads them itself
            yield from [UNREAD] * len(tasks)
            return
        most = max(1, FETCH_BYTES // max(1, self.fed.x[:1].nbytes))
        rows, sizes = [], []
        for task in tasks:
            numbers, parts = self.batch_numbers(task.t, task.client, task.K)
            rows.append(self.fed.rows(task.client, numbers))
            sizes.append(parts)
            if sum(map(len, rows)) >= most:
                yield from self._fetch(rows, sizes)
                rows, sizes = [], []
        if rows:
            yield from self._fetch(rows, sizes)

    def _fetch(self, rows: list[np.ndarray], sizes: list[list[int]]) -> Iterator[Samples]:
        """BLAS may round differently for another alignment, so each client's samples start on a 64-byte boundary, as
        they do when the client is fetched alone. Repeated rows fill the gaps."""
        unit = max(ALIGN // math.gcd(z[:1].nbytes or ALIGN, ALIGN) for z in (self.fed.x, self.fed.y))
        counts = [len(mine) for mine in rows]
        gaps = [-count % unit for count in counts]
        parts = [part for mine, gap in zip(rows, gaps, strict=True) for part in (mine, mine[:1].repeat(gap))]
        x, y = self.fed.take_rows(np.concatenate(parts[:-1]))
        starts = np.cumsum([0, *(count + gap for count, gap in zip(counts, gaps, strict=True))])
        for start, count, mine in zip(starts, counts, sizes, strict=False):
            yield Samples(x[start : start + count], y[start : start + count], mine)

    def _batches(self, task: ClientTask, samples: Samples) -> list[tuple[Any, Any]]:
        """The K mini-batches of a client."""
        if isinstance(self.fed.x, DatasetPool):
            return self._read_batches(task, self.fed.x)
        x, y = self.cast(self.augmented(task.t, task.client, samples.x), samples.y)
        if len(samples.sizes) < task.K:
            return [(x, y)] * task.K
        return list(zip(x.split_with_sizes(samples.sizes), y.split_with_sizes(samples.sizes), strict=True))

    def _read_batches(self, task: ClientTask, pool: DatasetPool) -> list[tuple[Any, Any]]:
        """The K mini-batches of a client whose samples a data set holds. Its random numbers depend on round and client."""
        numbers, sizes = self.batch_numbers(task.t, task.client, task.K)
        cuts = np.split(self.fed.rows(task.client, numbers), np.cumsum(sizes)[:-1])
        seeds = seeding.generator(self.seed, seeding.AUGMENT, task.t, task.client).integers(2**63, size=len(cuts))
        batches = [self.cast(*pool.batch(rows, int(seed))) for rows, seed in zip(cuts, seeds, strict=True)]
        return batches * task.K if len(batches) < task.K else batches

    def augmented(self, t: int, client: int, x: Tensor) -> Tensor:
        """x after the federation's random augmentation, if it has one."""
        if self.fed.augment is None:
            return x
        return self.fed.augment(x, seeding.generator(self.seed, seeding.AUGMENT, t, client))

    def cast(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Data as the model takes it: prepared, on its device, floating-point numbers in its dtype."""
        model = self.objective.model
        if isinstance(self.fed.x, DatasetPool):
            x, y = model.cast_nested(x), model.cast_nested(y)
        else:
            x, y = model.cast(x, self.fed.prepare), model.cast(y)
        # Cross-entropy needs 64-bit class numbers.
        return x, y.long() if self.objective.each is not None and isinstance(y, Tensor) else y

    def all_data(self, client: int) -> Iterator[tuple[Any, Any, float]]:
        """All data of a client in pieces: (x, y, its share of the samples).

        They are copies, because a view's alignment, and with it the rounding, would depend on the client's place in the
        federation.
        """
        n = self.fed.size(client)
        if not isinstance(self.fed.x, DatasetPool):
            return in_pieces(*self.cast(*self.fed.take(client, np.arange(n))))
        pieces = np.array_split(np.arange(n), -(-n // CHUNK))
        return ((*self.cast(*self.fed.take(client, numbers)), len(numbers) / n) for numbers in pieces)
