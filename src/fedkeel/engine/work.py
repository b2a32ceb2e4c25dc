"""The local work of a round: which batches a client sees, and one call of the algorithm for one client or for a group."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.dry import dry_run, stages
from fedkeel.core.many import ManyClients, ManyOracle
from fedkeel.core.steps import Objective, OneClient, Workspace, at_once
from fedkeel.data.federation import Federation
from fedkeel.engine import seeding
from fedkeel.engine.evaluate import model_input
from fedkeel.engine.memory import ALIGN

AHEAD = 1 << 24  # bytes of samples that are fetched for several clients together, so that they stay in the cache


@dataclass
class Jobs:
    """What has to be run in a round."""

    stage: str  # the method of the algorithm that clients run: client, survey or warmup
    t: int  # -1: the warm-up
    ids: list[int]  # in increasing order
    K: list[int]
    drawn: dict[str, np.ndarray]  # [S] each
    down: Any  # what the server sends
    buffers: Tensor  # [b] the model's buffers

    def roles(self, position: int) -> dict[str, float]:
        """What was drawn for one client."""
        return {name: float(z[position]) for name, z in self.drawn.items()}

    def only(self, positions: Sequence[int]) -> Jobs:
        """The same for some of the clients."""
        ids, K = ([z[position] for position in positions] for z in (self.ids, self.K))
        return replace(self, ids=ids, K=K, drawn={name: z[list(positions)] for name, z in self.drawn.items()})


@dataclass
class Uploads:
    """What came back. Rows of clients that failed are undefined."""

    up: Any  # record of [S, ...]
    buffers: Tensor  # [S, b]
    losses: Tensor  # [S] float64, mean loss of the client's batches
    faults: dict[int, str]  # position -> why
    slots: dict[int, int]  # position -> where its new record was staged
    told: dict[str, Any] = field(default_factory=dict)  # what else the row of the round shall say
    cause: Exception | None = None  # the first fault, where it happened in this process


class Private(NamedTuple):
    """What the engine keeps for a client whose normalisation layers never leave it."""

    values: Tensor  # [b] parameters and statistics of the normalisation layers, float64


class Samples(NamedTuple):
    """The samples of all mini-batches of a client in a row, as they are stored."""

    x: Tensor
    y: Tensor
    sizes: list[int]  # of the batches; one of all data, if every step has the same


@dataclass
class Result:
    up: Any
    mem: Any
    buffers: Tensor
    loss: float


@dataclass
class Work:
    """Everything a client's work needs that does not change during a run."""

    algo: Algorithm
    fed: Federation
    objective: Objective
    seed: int
    batch_size: int | None
    lr_decay: float

    def __post_init__(self) -> None:
        self.workspace = Workspace(self.objective)
        self.largest = int(self.fed.sizes.max())  # samples of a client; made once, for a round must not cost O(N)

    def uploads(self) -> dict[str, Any]:
        """What a client sends in each stage that the method has; only shapes and dtypes mean anything."""
        algo, model = self.algo, self.objective.model
        return {stage: dry_run(algo, stage, model.layers, model.dtype) for stage in stages(algo)}

    def batch_numbers(self, t: int, client: int, K: int) -> tuple[np.ndarray, list[int]]:
        n = self.fed.size(client)
        if self.batch_size is None:  # the same batch in every step, unless each is augmented anew
            return (np.arange(n), [n]) if self.fed.augment is None else (np.tile(np.arange(n), K), [n] * K)
        return seeding.batch_order(seeding.generator(self.seed, seeding.BATCHES, t, client), n, K, self.batch_size)

    def samples(self, t: int, ids: Sequence[int], K: Sequence[int]) -> Iterator[Samples]:
        """What each of these clients sees; fetched for several at a time, which is faster than one by one."""
        most = max(1, AHEAD // max(1, self.fed.x[:1].nbytes))
        rows, sizes = [], []
        for client, steps in zip(ids, K, strict=True):
            numbers, parts = self.batch_numbers(t, client, steps)
            rows.append(self.fed.rows(client, numbers))
            sizes.append(parts)
            if sum(map(len, rows)) >= most:
                yield from self._fetch(rows, sizes)
                rows, sizes = [], []
        if rows:
            yield from self._fetch(rows, sizes)

    def _fetch(self, rows: list[np.ndarray], sizes: list[list[int]]) -> Iterator[Samples]:
        """Every client's samples begin at a multiple of 64 bytes, as they do if it is alone: products depend on that."""
        unit = max(ALIGN // math.gcd(z[:1].nbytes or ALIGN, ALIGN) for z in (self.fed.x, self.fed.y))
        counts = [len(mine) for mine in rows]
        gaps = [-count % unit for count in counts]
        parts = [part for mine, gap in zip(rows, gaps, strict=True) for part in (mine, mine[:1].repeat(gap))]
        x, y = self.fed.take_rows(np.concatenate(parts[:-1]))
        starts = np.cumsum([0, *(count + gap for count, gap in zip(counts, gaps, strict=True))])
        for start, count, mine in zip(starts, counts, sizes, strict=False):
            yield Samples(x[start : start + count], y[start : start + count], mine)

    def cast(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Data as the model takes it: prepared, on its device, and in its dtype where they are floating-point numbers."""
        x, y = model_input(self.objective.model, x, self.fed.prepare), model_input(self.objective.model, y)
        return x, y.long() if self.objective.each is not None else y  # cross-entropy takes no other whole numbers

    def one(
        self,
        stage: str,
        t: int,
        client: int,
        K: int,
        drawn: dict[str, float],
        down: Any,
        buffers: Tensor,
        mem: Any,
        samples: Samples | None = None,
    ) -> Result:
        """Runs one client. Its records may lie in memory that the next client uses: copy what is to be kept.

        samples: what `self.samples` gives for it, if that was already fetched.
        """
        model = self.objective.model
        torch.default_generator.manual_seed(seeding.model_seed(self.seed, t, client))
        roles = SimpleNamespace(
            **{name: torch.tensor([value], dtype=model.dtype, device=model.device) for name, value in drawn.items()}
        )
        batches = self._batches(t, client, K, samples or next(self.samples(t, [client], [K])))
        steps = OneClient(self.objective, t, batches, lambda: self.all_of(client), self.workspace, roles)
        if model.has_buffers:
            model.write_buffers(mem.values if model.private else buffers)
        given = [(name, z, z._version) for record in (down, mem) if record is not None for name, z in named(record)]
        up, new = getattr(self.algo.at(t, self.lr_decay), stage)(down, None if model.private else mem, steps)
        for name, z, version in given:
            if z._version != version:  # the next client would find it changed
                raise ValueError(f"{name} was changed in place, which is not this client's own; steps.copy makes a copy")
        if model.private:
            new = Private(model.read_buffers())
        check_finite(up, new)
        after = model.read_buffers()
        # Buffers may be infinite from the start (masks of attention), but must not become so.
        if model.has_buffers and bool((buffers.to(after.device).isfinite() & ~after.isfinite()).any()):
            raise NotFinite("the model's buffers are not finite")
        loss = math.fsum(map(float, steps.losses)) / len(steps.losses) if steps.losses else math.nan
        return Result(up, new, after, loss)

    def all_of(self, client: int) -> tuple[Tensor, Tensor]:
        """All data of a client; a copy, whose numbers lie as they would anywhere else: products depend on that."""
        return self.cast(*self.fed.take(client, np.arange(self.fed.size(client))))

    def _batches(self, t: int, client: int, K: int, samples: Samples) -> list[tuple[Tensor, Tensor]]:
        """The mini-batches of a client."""
        x, y = self.cast(self._augmented(t, client, samples.x), samples.y)
        if len(samples.sizes) < K:
            return [(x, y)] * K
        return list(zip(x.split_with_sizes(samples.sizes), y.split_with_sizes(samples.sizes), strict=True))

    def _augmented(self, t: int, client: int, x: Tensor) -> Tensor:
        """The samples of all batches of a client in a row, changed at random if the federation asks for it."""
        if self.fed.augment is None:
            return x
        return self.fed.augment(x, seeding.generator(self.seed, seeding.AUGMENT, t, client))

    def group(
        self, jobs: Jobs, ids: Sequence[int], K: int, drawn: dict[str, np.ndarray], mem: Any, oracle: ManyOracle
    ) -> tuple[Any, Any, Tensor]:
        """Runs some clients of a round, all with the same K, at once; mem is [S, ...] -> (up, mem, losses [S])."""
        model = self.objective.model
        numbers = [self.batch_numbers(jobs.t, client, K) for client in ids]
        x, y, rows = self._pool(jobs.t, ids, [order for order, _ in numbers])
        parts = [_cut(mine, sizes) for mine, (_, sizes) in zip(rows, numbers, strict=True)]
        if len(numbers[0][1]) < K:
            batches = [self._padded(x, y, rows)] * K
        elif self.objective.each is None:  # as large as they are: the loss must not see padding
            batches = [self._padded(x, y, [part[k] for part in parts]) for k in range(K)]
        else:
            # The same shape in every round, so that a compiled gradient is compiled once.
            width = None if self.batch_size is None else min(self.batch_size, self.largest)
            everything = self._padded(x, y, [part[k] for k in range(K) for part in parts], width)
            batches = list(zip(*(z.view(K, len(ids), *z.shape[1:]) for z in everything), strict=True))
        roles = {name: torch.as_tensor(z, dtype=model.dtype, device=model.device).unsqueeze(-1) for name, z in drawn.items()}
        steps = ManyClients(
            self.objective, jobs.t, oracle, len(ids), batches, lambda: self._everything(ids), SimpleNamespace(**roles)
        )
        up, new = getattr(self.algo.at(jobs.t, self.lr_decay), jobs.stage)(jobs.down, mem, steps)
        losses = torch.stack(steps.losses).double().mean(0) if steps.losses else torch.full((len(ids),), torch.nan)
        return up, new, losses

    def _pool(self, t: int, ids: Sequence[int], numbers: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, list[np.ndarray]]:
        """Where the samples of these clients lie: x and y, and the rows of every client in them."""
        if self.fed.augment is None:
            rows = [self.fed.rows(client, mine) for client, mine in zip(ids, numbers, strict=True)]
            return self.fed.x, self.fed.y, rows
        pairs = [self.fed.take(client, mine) for client, mine in zip(ids, numbers, strict=True)]
        changed = [self._augmented(t, client, x) for client, (x, _) in zip(ids, pairs, strict=True)]
        ends = np.cumsum([len(y) for _, y in pairs])
        return torch.cat(changed), torch.cat([y for _, y in pairs]), np.split(np.arange(ends[-1]), ends[:-1])

    def _padded(
        self, x: Tensor, y: Tensor, rows: Sequence[np.ndarray], width: int | None = None, of: Sequence[np.ndarray] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of several clients as [S, B, ...]; short ones repeat their first row with weight 0.

        of: the rows that these are a part of, if the mean is over those.
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
        model, chosen = self.objective.model, torch.from_numpy(index.reshape(-1))
        x, y = self.cast(x.index_select(0, chosen), y.index_select(0, chosen))
        return (
            x.view(*index.shape, *x.shape[1:]),
            y.view(*index.shape, *y.shape[1:]),
            torch.as_tensor(weight, dtype=model.dtype, device=model.device),
        )

    def _everything(self, ids: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        chunk = at_once(self.cast(self.fed.x[:1], self.fed.y[:1])[0])
        rows = [self.fed.rows(client, np.arange(self.fed.size(client))) for client in ids]
        return [
            self._padded(self.fed.x, self.fed.y, [mine[start : start + chunk] for mine in rows], of=rows)
            for start in range(0, max(map(len, rows)), chunk)
        ]


def _cut(rows: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Pieces of these sizes; numpy's own split is slower, by a few hundredths of a small round."""
    return [rows[start:stop] for start, stop in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread, so that every engine adds in the same order; the caller's random state is left as it was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads)


def named(record: Any) -> Iterable[tuple[str, Tensor]]:
    """The fields of a record."""
    return zip(record._fields, record, strict=True)


class NotFinite(ValueError):
    """A client's result contains NaN or infinity."""


def check_finite(*records: Any) -> None:
    for record in records:
        if record is None:
            continue
        for name, z in named(record):
            # The sum is finite only if all numbers are, and cheaper than looking at each; it may overflow though.
            if not math.isfinite(z.sum()) and not bool(torch.isfinite(z).all()):
                raise NotFinite(f"{name} is not finite")
