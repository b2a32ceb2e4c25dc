"""Who runs the clients of a round: one of the engines, or machines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fedkeel.engine.client_work import Jobs, Uploads, Work
from fedkeel.engine.runners import auto
from fedkeel.engine.runners.processes import Processes
from fedkeel.engine.runners.sequential import Sequential
from fedkeel.engine.runners.vectorized import Vectorized


class Runner(Protocol):
    def run(self, jobs: Jobs) -> Uploads: ...

    def close(self) -> None: ...


class Remote(Protocol):
    """Clients on other machines that keep their records themselves: who runs a round instead of an engine."""

    name: str  # for the summary of the run
    store: Any  # in the place of a Store; its slots are names of records that lie with the clients

    def begin(self, work: Work, initial: Any) -> Runner:
        """initial: the record of a client never seen before."""


@dataclass
class Engine:
    """The engine that was asked for; `auto` becomes the one that it chooses."""

    name: str
    workers: int | None
    timeout: float | None
    ray: dict[str, str]  # address and device
    remote: Remote | None = None
    why: str = ""  # it was chosen

    def __post_init__(self) -> None:
        if self.remote is not None:
            self.name = self.remote.name

    def start(self, work: Work, store: Any, initial: Any, jobs: Jobs, S: int, rounds: int) -> Runner:
        """jobs: the first to be run.  S: the most clients of a round.  rounds: how many are to come."""
        if self.remote is not None:
            return self.remote.begin(work, initial)
        if self.name == "auto" and self.timeout is not None:
            self.name, self.why = "processes", "a time limit needs worker processes"
        if self.name == "auto":
            self.name, self.why = auto.choose(work, store, jobs, rounds, self.workers)
        if self.name == "processes":
            return Processes(work, store, jobs.down, S, min(self.workers or auto.cores(), S), self.timeout)
        if self.name == "ray":
            from fedkeel.engine.runners.ray import Ray  # not everybody has it

            return Ray(work, store, S, self.workers, self.timeout, **self.ray)
        if self.name == "sequential":
            return Sequential(work, store)
        return Vectorized(work, store, compiled=self.name == "compiled")
