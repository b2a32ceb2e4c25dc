"""Clients that start and finish at different moments: the event queue of asynchronous runs.

`concurrency` clients work at the same time. Whoever finishes puts its upload into the server's buffer, and another client
starts in its place, from the model of that moment. When the buffer holds `buffer` uploads, the server makes a step. What
happens at the same moment is done in this order: first all uploads arrive, then the server makes its steps, then clients
start.

The queue is a pure function of the seed and the fleet: what clients compute does not matter, a client that fails neither. So
all engines have the same events, and a run that resumes plays the events again that came before its checkpoint.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedkeel.channel.validity import why_not_buffer
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import Layers
from fedkeel.engine.client_work import Exchange
from fedkeel.engine.participation import Schedule


class Start(NamedTuple):
    """A client that has started. Ordered by the moment at which its upload arrives."""

    ends: float  # virtual seconds
    number: int  # of all starts of the run, from 0
    client: int
    version: int  # of the model: the number of server steps before
    begins: float
    K: int  # local steps
    roles: dict[str, float]


@dataclass
class EventQueue:
    buffer: int
    concurrency: int
    schedule: Schedule
    plan: Callable[[int, list[int], int], Exchange]  # (version, clients, turn) -> their local steps and roles
    seconds: Callable[[Exchange], np.ndarray]  # [S] how long each of them needs
    now: float = 0.0  # virtual seconds

    def __post_init__(self) -> None:
        self.flying: list[Start] = []  # a heap
        self.arrived: list[Start] = []
        self.version, self.turn, self.number = 0, 0, 0

    def step(self) -> list[Start]:
        """Goes on until the server makes a step. Returns the uploads of that step, in the order of the clients.

        If nobody is under way and nobody can start, the server makes its step with the uploads that it has, even if there
        are none.
        """
        while len(self.arrived) < self.buffer:
            self._start_clients()
            if not self.flying:
                break
            self.now = self.flying[0].ends
            while self.flying and self.flying[0].ends == self.now:
                self.arrived.append(heapq.heappop(self.flying))
        used, self.arrived = self.arrived[: self.buffer], self.arrived[self.buffer :]
        self.version, self.turn = self.version + 1, 0
        return sorted(used, key=lambda start: start.client)

    def needed(self) -> set[int]:
        """The versions of the model from which clients under way, or in the buffer, have started."""
        return {start.version for start in (*self.flying, *self.arrived)}

    def _start_clients(self) -> None:
        busy = {start.client for start in (*self.flying, *self.arrived)}
        wanted = self.concurrency - len(self.flying)
        if wanted < 1:
            return
        if not self.flying and not self.arrived:
            self.now = self.schedule.somebody_from(self.now)
        ids = self.schedule.draw(self.version, wanted, self.now, busy, self.turn)
        if not ids:
            return
        exchange = self.plan(self.version, ids, self.turn)
        for position, seconds in enumerate(self.seconds(exchange).tolist()):
            start = Start(
                self.now + seconds,
                self.number,
                ids[position],
                self.version,
                self.now,
                exchange.K[position],
                exchange.roles(position),
            )
            heapq.heappush(self.flying, start)
            self.number += 1
        self.turn += 1


def check_asynchronous(algo: Algorithm, layers: Layers) -> None:
    """Refuses a method that cannot run asynchronously. algo: planned for a model with these layers."""
    why = why_not_buffer(algo, layers)
    if why:
        raise ValueError(f"buffer is not allowed with {algo.name}: {why}")
