"""Runs a study: complete runs are read, partial ones continued, the others begun, as many at a time as there is room for."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import multiprocessing
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from fedkeel.engine.machine import cores
from fedkeel.engine.state import directory
from fedkeel.files import claim, guarded
from fedkeel.runs import from_config
from fedkeel.study.running import pools as pool
from fedkeel.study.running.data import Data
from fedkeel.study.running.plan import Asked, Found, Job, clear, is_complete, outcome_of, size, steps_of
from fedkeel.study.running.progress import StudyBar
from fedkeel.study.study import Study


def run_study(
    study: Study,
    store: Path,
    *,
    fresh: bool = False,
    jobs: int | None = None,
    ray: str | None = None,
    progress: bool = True,
    trackers: dict[str, str] | None = None,
    begin: Callable[[], None] = lambda: None,
) -> list[Found]:
    """Runs whatever of a study is not complete. store: where its runs lie; jobs: how many at a time (default: one per core);
    ray: the address of a cluster to run on.

    begin: called when all was checked, before anything is run. A run that fails is told in its outcome, it stops no other.
    """
    plans = [steps_of(study, group, store, fresh, trackers or {}) for group in study.groups()]
    total, rounds = size(study)
    with StudyBar(total, rounds, progress) as bar:
        workers = cores() if jobs is None else jobs
        runner = Scheduler(workers, ray, bar)

        def claimed_begin() -> None:
            guarded(store, lambda: store.mkdir(parents=True, exist_ok=True))
            # Each of two would find the other's runs locked, and list them as failed.
            claim(store / "study.lock", runner, "another process is running a study")
            if fresh:
                clear(study, store)
            begin()

        try:
            return [found for group in runner.drive(plans, claimed_begin) for found in group]
        finally:
            runner.pool.close()


def make_pool(workers: int, ray: str | None, bar: StudyBar) -> Any:
    """Who carries out the runs: something with size, start(job, fed), ended() and close(). ray: address of a cluster."""
    if ray is not None:
        return pool.OnRay(ray)
    if workers > 1 and "fork" in multiprocessing.get_all_start_methods():
        return pool.Forks(workers, bar.row, bar.refresh)
    return pool.Here(bar.row)


class Scheduler:
    """Gives runs to a pool: trials first, then seed by seed, so that what is interrupted has something of every method."""

    def __init__(self, workers: int, ray: str | None, bar: StudyBar) -> None:
        self.pool, self.bar, self.remote = make_pool(workers, ray, bar), bar, ray is not None
        self.queue: list[tuple[int, int, Job]] = []
        self.number = itertools.count()
        self.data = Data()
        self.running = 0
        self.begun = False

    def drive(self, plans: Sequence[Generator[Asked, Any, list[Found]]], begin: Callable[[], None]) -> list[list[Found]]:
        self.results: list[list[Found]] = [[] for _ in plans]
        self.open: dict[int, tuple[Asked, dict[Job, str | None]]] = {}  # plan -> what it waits for, and what has ended
        self.owner: dict[Job, int] = {}
        self.plans = plans
        asked = [(place, next(plan)) for place, plan in enumerate(plans)]
        for place, one in asked:  # all are checked before any is started
            self._ask(place, one)
        self.bar.announce(self.bar.done)
        self._check_data()
        begin()
        self.begun = True
        while self.open:
            while self.queue and self.running < self.pool.size:
                self._start(heapq.heappop(self.queue)[-1])
            for job, error in self.pool.ended():
                self.running -= 1
                if error:
                    self._failed(job, error)
                else:
                    self._end(job, None)
        return self.results

    def _check_data(self) -> None:
        """If all runs are on the same data and model, what is wrong with these is an error of the study; so it is if there
        are no data for any of them."""
        configs = {Data.key(job.config): job.config for _, _, job in self.queue}
        if self.remote or not configs:
            return
        if len(configs) == 1:
            config = next(iter(configs.values()))
            from_config.task(config, self.data.of(config))
            return
        if self.bar.done:  # there is something to report
            return
        for config in configs.values():
            with contextlib.suppress(Exception):
                self.data.load(config)
                return
        raise next(iter(self.data.absent.values()))

    def _ask(self, place: int, asked: Asked) -> None:
        self.open[place] = asked, {}
        complete, refused = [], []
        for job, seed, branch in zip(asked.jobs, asked.seeds, asked.branches, strict=True):
            self.owner[job] = place
            try:
                if is_complete(job, () if asked.search else branch.grid):
                    complete.append(job)
                    continue
            except ValueError as error:
                if not self.begun:
                    raise
                refused.append((job, str(error)))  # too late to refuse the study: other runs are under way
                continue
            turn = 0 if asked.search else 1 + branch.seeds.index(seed)
            heapq.heappush(self.queue, (turn, next(self.number), job))
        self.bar.already(complete)
        for job in complete:
            self.data.had(job)
            self._end(job, None, told=False)
        for job, why in refused:
            self._end(job, why)

    def _start(self, job: Job) -> None:
        if is_complete(job):  # another study that shares the runs has ended since
            return self._end(job, None)
        if job.replaces:
            self.bar.say(f"{job.name}: replaces a run with {job.replaces}")
        self.bar.begin(job)
        try:
            fed = None if self.remote else self.data.of(job.config)
        except Exception as error:  # no data for this case; there may be some for others
            return self._failed(job, " ".join(str(error).split()))
        directory.mark_failed(job.out, None)
        self.running += 1
        self.pool.start(job, fed)

    def _failed(self, job: Job, error: str) -> None:
        directory.mark_failed(job.out, error)
        self._end(job, error)

    def _end(self, job: Job, error: str | None, told: bool = True) -> None:
        place = self.owner.pop(job)
        asked, ended = self.open[place]
        ended[job] = error
        if told:
            self.bar.end(job, error)
        if len(ended) < len(asked.jobs):
            return
        del self.open[place]
        outcomes = [
            outcome_of(job, branch, seed, ended[job])
            for job, branch, seed in zip(asked.jobs, asked.branches, asked.seeds, strict=True)
        ]
        try:
            self._ask(place, self.plans[place].send(outcomes))
        except StopIteration as end:
            self.results[place] = end.value
