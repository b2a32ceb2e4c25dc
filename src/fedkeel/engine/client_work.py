"""The local work of a round: which batches a client sees, and one call of the algorithm for it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.one_client import OneClient, Workspace
from fedkeel.core.records import check_finite
from fedkeel.core.steps import Objective
from fedkeel.core.torch_private import version
from fedkeel.core.trial import exchanges_of, trial_upload
from fedkeel.data.federation import Federation
from fedkeel.engine import seeding
from fedkeel.engine.inputs import model_input
from fedkeel.engine.state.shared_memory import ALIGN
from fedkeel.errors import NotFinite

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


def stacked(records: list[Any]) -> Any:
    """Records -> one record of [S, ...]."""
    fields: list[Tensor] = [torch.stack(z) for z in zip(*records, strict=True)]
    return type(records[0])(*fields)


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

    def uploads(self) -> dict[str, Any]:
        """What a client sends in each stage that the method has; only shapes and dtypes mean anything."""
        algo, model = self.algo, self.objective.model
        return {stage: trial_upload(algo, stage, model.layers, model.dtype) for stage in exchanges_of(algo)}

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
        steps.seeds = lambda: [seeding.method_seed(self.seed, t, client)]
        if model.has_buffers:
            model.write_buffers(mem.values if model.private else buffers)
        given = [
            (name, z, version(z)) for record in (down, mem) if record is not None for name, z in record._asdict().items()
        ]
        up, new = getattr(self.algo.at(t, self.lr_decay), stage)(down, None if model.private else mem, steps)
        for name, z, before in given:
            if version(z) != before:  # the next client would find it changed
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
        x, y = self.cast(self.augmented(t, client, samples.x), samples.y)
        if len(samples.sizes) < K:
            return [(x, y)] * K
        return list(zip(x.split_with_sizes(samples.sizes), y.split_with_sizes(samples.sizes), strict=True))

    def augmented(self, t: int, client: int, x: Tensor) -> Tensor:
        """The samples of all batches of a client in a row, changed at random if the federation asks for it."""
        if self.fed.augment is None:
            return x
        return self.fed.augment(x, seeding.generator(self.seed, seeding.AUGMENT, t, client))


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
