"""How many virtual seconds a client needs for an exchange.

Seconds are those of receiving the server's record, of the gradients, and of sending the upload. How many gradients a client
computes per local step, and how many on all of its data, shows a trial of the method. Torch counts how many operations the
gradient of one sample takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedkeel.channel.sizes import NO_LINKS, Links, field_bytes, record_bytes
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import TrialSteps, ZeroGrad, down_record, exchanges_of
from fedkeel.core.steps import Grad
from fedkeel.data.federation import Federation
from fedkeel.engine.client_work import Exchange
from fedkeel.engine.fleet import Fleet


class CountedGrad(ZeroGrad):
    """Counts the gradients of a trial step."""

    steps: CountedSteps

    def __call__(self, w: Tensor) -> Tensor:
        self.steps.gradients += 1
        return super().__call__(w)

    def plus(self, *args: Any, **kw: Any) -> Tensor:
        self.steps.gradients += 1
        return super().plus(*args, **kw)


class CountedSteps(TrialSteps):
    gradients = 0  # of mini-batches
    full = 0  # of all data

    def __iter__(self) -> Iterator[Grad]:
        yield CountedGrad(self)

    def full_grad(self, w: Tensor) -> Tensor:
        self.full += 1
        return super().full_grad(w)


class Pace:
    """The virtual seconds of every client of a run."""

    def __init__(
        self,
        fleet: Fleet,
        seed: int,
        algo: Algorithm,
        model: FlatModel,
        fed: Federation,
        batch: int | None,
        links: Links = NO_LINKS,
    ) -> None:
        """links: how vectors are compressed on their way."""
        self.clients, self.sizes, self.batch = fleet.clients(seed, len(fed)), fed.sizes, batch
        self.operations = operations_per_sample(model, fed)
        self.tracked = algo.facts.tracked
        server, mem = algo.init(torch.zeros(len(model.vector()), dtype=model.dtype))
        down, buffers = down_record(algo, server), model.read_buffers().nbytes
        self.down = record_bytes(down, links.downlink) + buffers
        self.gradients: dict[str, tuple[int, int]] = {}  # exchange -> gradients per local step, and on all data
        self.up: dict[str, tuple[int, int]] = {}  # exchange -> bytes of all clients, and further bytes of those that track
        for stage in exchanges_of(algo):
            roles = algo.draw(np.random.default_rng(0), [0])
            steps = CountedSteps(model.layers, list(roles), model.dtype)
            up, _ = getattr(algo, stage)(down, mem, steps)
            uplink = None if stage == "warmup" else links.uplink
            sizes = {name: field_bytes(name, z.shape, z.element_size(), uplink) for name, z in up._asdict().items()}
            extra = sum(sizes.pop(name, 0) for name in self.tracked)
            self.gradients[stage], self.up[stage] = (steps.gradients, steps.full), (sum(sizes.values()) + buffers, extra)

    def seconds(self, exchange: Exchange, stage: str) -> np.ndarray:
        """[S] of every client of an exchange, if it were this stage."""
        ids, K = np.array(exchange.ids, dtype=np.int64), np.array(exchange.K)
        per_step, full = self.gradients[stage]
        samples = per_step * self._samples(self.sizes[ids], K) + full * self.sizes[ids]
        always, extra = self.up[stage]
        up = always + extra * np.asarray(exchange.drawn.get("tracks", np.ones(len(ids))))
        of = {key: z[ids] for key, z in self.clients.items()}
        work = samples * self.operations / of["speed"]
        total: np.ndarray = 2 * of["latency"] + self.down / of["down"] + work + up / of["up"]
        return total

    def _samples(self, sizes: np.ndarray, K: np.ndarray) -> np.ndarray:
        """How many samples the K mini-batches of a client have; the last batch of a pass may be short."""
        batch = sizes if self.batch is None else self.batch
        passes, rest = np.divmod(K, -(-sizes // batch))
        samples: np.ndarray = passes * sizes + np.minimum(rest * batch, sizes)
        return samples


def operations_per_sample(model: FlatModel, fed: Federation) -> float:
    """Floating-point operations of the forward and backward pass of one sample."""
    module = model.copy().eval()
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        output = module(model.cast(fed.x[:1], fed.prepare))
        if isinstance(output, Tensor) and output.requires_grad:
            output.sum().backward()
    return float(counter.get_total_flops())
