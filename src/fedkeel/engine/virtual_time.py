"""Virtual time: clients that are late (`clock`), and asynchronous runs (`buffer`), whose clients start from older models.

A run has one of the two. With a clock alone, rounds stay rounds, and each takes as long as its clients. With a buffer, a
round is a step of the server, and the event queue says whose uploads it uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.device import to_device
from fedkeel.core.flat import FlatModel
from fedkeel.data.federation import Federation
from fedkeel.engine.client_work import Exchange
from fedkeel.engine.events import EventQueue, check_asynchronous
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.participation import Schedule
from fedkeel.engine.round_clock import RoundClock
from fedkeel.engine.runners.runner import Runner
from fedkeel.engine.runners.started_before import Sent, StartedBefore
from fedkeel.engine.settings import Settings

if TYPE_CHECKING:
    from fedkeel.channel.sizes import Links

Plan = Callable[[str, int, list[int], int], Exchange]  # (stage, round, clients, turn)


class VirtualTime:
    def __init__(
        self,
        settings: Settings,
        algo: Algorithm,
        model: FlatModel,
        fed: Federation,
        schedule: Schedule,
        plan: Plan,
        links: Links | None,
    ) -> None:
        """plan: draws the roles and numbers of steps of an exchange.  links: how vectors are compressed on their way."""
        self.settings, self.algo, self.schedule, self.plan, self.N = settings, algo, schedule, plan, len(fed)
        self.clock: RoundClock | None = None
        self.queue: EventQueue | None = None
        self.sent: dict[int, Sent] = {}  # version of the model -> what clients received that have started from it
        self.version: dict[int, int] = {}  # clients of the present round -> the version from which they started
        pace = None
        if settings.clock is not None:
            from fedkeel.channel.sizes import NO_LINKS
            from fedkeel.engine.pace import Pace

            fleet = Fleet(settings.clock)
            pace = Pace(fleet, settings.seed, algo, model, fed, settings.batch, links or NO_LINKS)
        began = 0.0
        if pace is not None and algo.warms_up():
            steps = settings.steps_of(fed.sizes).tolist()
            everybody = Exchange("warmup", -1, list(range(self.N)), steps, {}, None, model.read_buffers())
            began = float(pace.seconds(everybody, "warmup").max())  # all clients warm up at the same time
        if settings.buffer is not None:
            check_asynchronous(algo, model.layers)
            at_once = settings.concurrency or settings.cohort_size(self.N)
            seconds = partial(pace.seconds, stage="client") if pace is not None else lambda e: np.zeros(len(e.ids))
            self.queue = EventQueue(settings.buffer, at_once, schedule, partial(plan, "client"), seconds, began)
        elif pace is not None:
            self.clock = RoundClock(pace, settings.deadline)
            self.clock.now = began

    def with_older_models(self, runner: Runner) -> Runner:
        """The runner, for clients that may have started from an older model."""
        return runner if self.queue is None else StartedBefore(runner, self.sent, self.version)

    # Who takes part in a round ------------------------------------------------------------------------------------

    def select(self, t: int, sent: tuple[Any, Tensor], lr_factor: float) -> tuple[Exchange, dict[str, Any]]:
        """The main exchange of round t, and columns of the history. sent: what the server sends now."""
        if self.queue is not None:
            return self._arrived(self.queue, t, Sent(*sent), lr_factor)
        assert self.clock is not None
        return self._in_time(self.clock, t)

    def _in_time(self, clock: RoundClock, t: int) -> tuple[Exchange, dict[str, Any]]:
        """The clients of a round that are in time."""
        clock.now = now = self.schedule.somebody_from(clock.now)
        ids, wanted = self.schedule.participants(t, now), self.N
        if self.settings.overselect > 1:
            wanted = self.schedule.S
            ids = self.schedule.draw(t, min(self.N, math.ceil(self.settings.overselect * wanted)), now)
        exchange = self.plan("client", t, ids, 0)
        if not ids:
            return exchange, {"clock_seconds": now, "late": 0, "timeline": []}
        in_time, columns = clock.round(exchange, self.algo.surveys(t), wanted)
        return exchange.only(in_time), columns

    def _arrived(self, queue: EventQueue, t: int, now: Sent, lr_factor: float) -> tuple[Exchange, dict[str, Any]]:
        """The clients whose uploads the server uses in its step t."""
        self.sent[t] = now
        starts = queue.step()
        for version in self.sent.keys() - queue.needed() - {start.version for start in starts}:
            del self.sent[version]
        self.version.clear()
        self.version.update({start.client: start.version for start in starts})
        names = starts[0].roles if starts else ()
        drawn = {name: np.array([start.roles[name] for start in starts]) for name in names}
        K, delays = [start.K for start in starts], [t - start.version for start in starts]
        ids = [start.client for start in starts]
        exchange = Exchange("client", t, ids, K, drawn, *self.sent.get(t, now), lr_factor=lr_factor)
        columns: dict[str, Any] = {"staleness": sum(delays) / max(1, len(delays)), "most_stale": max(delays, default=0)}
        if self.settings.clock is not None:
            work = [[start.client, start.begins, start.ends, True] for start in starts]
            columns |= {"clock_seconds": queue.now, "timeline": work}
        return exchange, columns

    def weights(self, exchange: Exchange, ids: Sequence[int], p: Tensor) -> tuple[Tensor, Tensor]:
        """The clients' weights p, smaller for old models; and how many server steps old the model of each is, [S] each."""
        old = [exchange.t - self.version.get(i, exchange.t) for i in ids]
        if any(old) and exchange.stage == "client":
            p = p * torch.tensor([self.settings.freshness(tau) for tau in old], dtype=torch.float64)
        return p, torch.tensor(old, dtype=torch.float64)

    # Checkpoints --------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the models from which clients under way have started."""
        found: dict[str, Tensor] = {}
        for version, sent in self.sent.items():
            found |= {f"sent.{version}.{name}": z for name, z in sent.down._asdict().items()}
            found[f"sent.{version}"] = sent.buffers
        return found

    def restore(
        self, t: int, history: Sequence[dict[str, Any]], tensors: dict[str, Tensor], sent: tuple[Any, Tensor]
    ) -> None:
        """Sets clock and event queue to the moment of a checkpoint. sent: what the server sends now."""
        if self.clock is not None and history:
            self.clock.now = history[-1]["clock_seconds"]
        if self.queue is None:
            return
        for _ in range(t):
            self.queue.step()
        template, buffers = sent
        for version in self.queue.needed():
            values = (tensors[f"sent.{version}.{name}"].to(template[0].device, copy=True) for name in template._fields)
            self.sent[version] = Sent(type(template)(*values), to_device(tensors[f"sent.{version}"], buffers.device))
