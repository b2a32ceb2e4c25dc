"""Runs a study: reuses complete runs, continues partial ones and starts the others, as many at a time as there is room for.

- A branch is one line of the results: a method in a case, run once per seed. If a branch has a grid of values, trials
  come first and choose one of the values.
- A group is a list of branches that share a search. Most groups have one branch.
- A wave is a list of runs of one group that do not depend on each other. A group with a search first has waves of
  trials; the scores of one wave may decide what the next one tries. The last wave of a group has the runs that count.
- `StudyPlan.branch_runs(group)` returns a generator. It yields the runs of a wave. `send(outcomes)` makes it yield the next
  wave. At its end it returns the results of the group.

The scheduler opens the first wave of all groups and puts their runs into one queue, ordered by `StudyRun.turn`. It gives
runs to a pool while the pool has room. When the last run of a wave has ended, it opens the next wave of that group. The
study is complete when no wave is open.

A run that fails, or whose process dies, does not stop the others. Run the same command again to retry it from its
checkpoint. Ctrl-C stops all runs; the same command continues them. Only an error of the disk stops the whole study.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import fedkeel.runs.from_config as from_config
from fedkeel.engine.machine import cores
from fedkeel.engine.objective import usable_device
from fedkeel.engine.state import directory
from fedkeel.files import Claim, guarded
from fedkeel.study.python_objects import NAMES_ONLY, PythonObjects
from fedkeel.study.running.plan import BranchResult, StudyPlan, StudyRun, Waves, size
from fedkeel.study.running.pools import Pool, make_pool
from fedkeel.study.running.progress import StudyBar
from fedkeel.study.running.study_data import StudyData
from fedkeel.study.study import Study


def run_branches(
    study: Study,
    store: Path,
    *,
    fresh: bool = False,
    jobs: int | None = None,
    ray: str | None = None,
    slurm: str | None = None,
    progress: bool = True,
    trackers: dict[str, str] | None = None,
    objects: PythonObjects = NAMES_ONLY,
    begin: Callable[[], None] = lambda: None,
) -> list[BranchResult]:
    """Runs what is not complete of a study, and returns the results of all branches, in the order of `study.groups()`.

    store: the directory of all runs.  jobs: runs at a time (default: one per core).  ray: the address of a cluster.
    slurm: how runs become jobs of a Slurm cluster, "partition=short,hours=4,at-most=20".
    objects: model, data and functions that are Python objects.  begin: called after all checks, before the first run starts.
    A run that fails does not stop the others; its outcome has the error.
    """
    if objects != NAMES_ONLY and (ray is not None or slurm is not None):
        name = "slurm" if ray is None else "ray"
        raise ValueError(f"{name} is not allowed with Python objects: its nodes load data and models by their names")
    plan = StudyPlan(study, store, fresh, trackers or {}, objects)
    return run_plan(plan, *size(study), jobs=jobs, ray=ray, slurm=slurm, progress=progress, begin=begin)


def run_plan(
    plan: StudyPlan,
    runs: int,
    rounds: int,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    slurm: str | None = None,
    progress: bool = True,
    begin: Callable[[], None] = lambda: None,
) -> list[BranchResult]:
    """As `run_branches`. runs, rounds: how many the plan has in all, for the progress bar."""
    store, fresh = plan.store, plan.fresh
    with StudyBar(runs, rounds, progress) as bar:
        pool = make_pool(cores() if jobs is None else jobs, ray, slurm, bar.row, bar.refresh)
        scheduler = Scheduler(plan, pool, bar, loads_data=ray is None and slurm is None)
        try:
            scheduler.check()
            guarded(store, lambda: store.mkdir(parents=True, exist_ok=True))
            # Two processes in one directory would find each other's runs locked, and report them as failed.
            with Claim(store / "study.lock", "another process is running a study"):
                if fresh:
                    plan.clear()
                begin()
                return scheduler.run()
        finally:
            pool.close()


@dataclass(eq=False)
class Wave:
    """Runs that must all end before their group of branches can continue."""

    group: int  # which group
    runs: list[StudyRun]
    ended: dict[StudyRun, str | None] = field(default_factory=dict)  # run -> its error, None if it is complete


class Scheduler:
    def __init__(self, plan: StudyPlan, pool: Pool, bar: StudyBar, loads_data: bool = True) -> None:
        """loads_data: load the data here, and hand them to the pool. Nodes of a cluster load them themselves."""
        self.pool, self.bar, self.loads_data = pool, bar, loads_data
        self.groups: list[Waves] = [plan.branch_runs(group) for group in plan.study.groups()]
        self.results: list[list[BranchResult]] = [[] for _ in self.groups]
        self.data = plan.data
        self.waves: dict[StudyRun, Wave] = {}  # run that has not ended -> its wave
        self.queue: list[tuple[int, int, StudyRun]] = []  # a heap of (turn, number, run): runs that wait for a place
        self.numbers = itertools.count()  # Runs of the same turn start in the order of the study.
        self.started = False
        self.running = 0

    def check(self) -> None:
        """Opens the first waves, and where all runs are complete, those after them.

        Raises ValueError if a directory holds a different run, or if the data cannot be loaded.
        """
        waves = [Wave(number, next(group)) for number, group in enumerate(self.groups)]
        for wave in waves:
            self._open(wave)
        self.bar.announce(self.bar.done)
        self._check_data()

    def run(self) -> list[BranchResult]:
        self.started = True
        while self.waves:
            while self.queue and self.running < self.pool.size:
                self._start(heapq.heappop(self.queue)[-1])
            if self.running:
                for run, error in self.pool.ended():
                    self.running -= 1
                    self._end(run, error)
        return [result for group in self.results for result in group]

    def _check_data(self) -> None:
        """Raises an error that all runs would have: a fault of the one data set and model that they share, or several data
        sets none of which can be loaded. With a cluster it checks nothing, since the nodes load the data."""
        first = {StudyData.key(run.config): run for _, _, run in self.queue}
        if not self.loads_data or not first:
            return
        for device in {run.config.device for run in first.values()}:
            usable_device(device)
        if len(first) == 1:
            run = next(iter(first.values()))
            fed = self.data.of_run(run)
            if self.data.objects.model is None:
                from_config.task(run.config, fed)
            return
        if self.bar.done:  # Some runs are complete, so there is something to report.
            return
        for run in first.values():
            with contextlib.suppress(Exception):
                self.data.load(run.config)
                return
        raise next(iter(self.data.load_errors.values()))

    def _open(self, wave: Wave) -> None:
        """Queues the runs of a wave that are not complete."""
        complete, refused = [], []
        for run in wave.runs:
            self.waves[run] = wave
            try:
                if run.is_complete():
                    complete.append(run)
                else:
                    heapq.heappush(self.queue, (run.turn, next(self.numbers), run))
            except ValueError as error:
                if not self.started:
                    raise
                refused.append((run, str(error)))  # Other runs have started, so only this one fails.
        self.bar.already(complete)
        for run in complete:
            self.data.note_complete(run)
            self._close(run, None)
        for run, why in refused:
            self.bar.end(run, why)
            self._close(run, why)

    def _start(self, run: StudyRun) -> None:
        try:
            complete = run.is_complete()  # Without file locks, another process may have completed it since the check.
        except ValueError as error:
            return self._end(run, str(error))
        if complete:
            self.bar.end(run, None)
            return self._close(run, None)
        if run.replaces:
            self.bar.say(f"{run.name}: replaces a run with {run.replaces}")
        self.bar.begin(run)
        try:
            fed = self.data.of_run(run) if self.loads_data else None
        except Exception as error:  # Only this run fails: runs of other cases may find their data.
            return self._end(run, " ".join(str(error).split()))
        directory.forget_failure(run.out)
        self.running += 1
        self.pool.start(run, fed)

    def _end(self, run: StudyRun, error: str | None) -> None:
        if error:
            directory.mark_failed(run.out, error)
        self.bar.end(run, error)
        self._close(run, error)

    def _close(self, run: StudyRun, error: str | None) -> None:
        """Notes that a run has ended. The last run of a wave opens the next wave."""
        wave = self.waves.pop(run)
        wave.ended[run] = error
        if len(wave.ended) < len(wave.runs):
            return
        outcomes = [one.outcome(wave.ended[one]) for one in wave.runs]
        try:
            self._open(Wave(wave.group, self.groups[wave.group].send(outcomes)))
        except StopIteration as end:
            self.results[wave.group] = end.value
