"""Runs side by side: a process of one thread for each, as many at a time as there are cores.

A process is forked for every run, so that data which the study has loaded are shared and a run that dies (of too little
memory, say) takes nothing with it. What it finds lies in its directory; a pipe carries rows of its history for the display.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from fedkeel.engine.forked import die_with, interrupts_wait
from fedkeel.engine.machine import forget_peak
from fedkeel.errors import StorageError, in_words
from fedkeel.runs import from_config
from fedkeel.runs.trackers import tracked
from fedkeel.study.running.plan import Job

PATIENCE = 0.25  # seconds between two looks at the display


Told = Callable[[Job, dict[str, Any]], None]  # called with a row of a run's history


def carry_out(job: Job, fed: Any, told: Callable[[dict[str, Any]], None], workers: int | None = None) -> str | None:
    """Runs a job in this process; the error in one line if it failed, None if it is complete."""
    config = job.config if workers is None or job.config.workers is not None else job.config.changed(workers=workers)
    try:
        with tracked(job.trackers, job.label, config.as_dict()) as log:
            from_config.train(
                config, job.out, resume=True, progress=lambda row: (told(row), log(row)), fresh=job.fresh, fed=fed
            )
    except StorageError:  # the next run would have nowhere to go, either
        raise
    except Exception as error:
        return in_words(error)
    job.tidy()
    return None


class Here:
    """One run after the other, in this process; a run may then use all cores for its clients."""

    size = 1

    def __init__(self, told: Told) -> None:
        self.told = told
        self.done: list[tuple[Job, str | None]] = []

    def start(self, job: Job, fed: Any) -> None:
        forget_peak()
        self.done.append((job, carry_out(job, fed, lambda row: self.told(job, row))))

    def ended(self) -> list[tuple[Job, str | None]]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        pass


class Forks:
    """`size` runs at a time, each in a process of its own."""

    def __init__(self, size: int, told: Told, idle: Callable[[], None]) -> None:
        self.size, self.told, self.idle = size, told, idle
        self.context = multiprocessing.get_context("fork")
        self.pipes: dict[Connection, Job] = {}

    def start(self, job: Job, fed: Any) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        job.process = self.context.Process(target=_serve, args=(job, fed, theirs, [ours, *self.pipes], os.getpid()))
        with interrupts_wait():  # or `close` might not know of it
            job.process.start()
            theirs.close()
            self.pipes[ours] = job

    def ended(self) -> list[tuple[Job, str | None]]:
        """Waits a moment; the runs that have ended, with their errors."""
        done = []
        for pipe in wait(list(self.pipes), timeout=PATIENCE):
            job = self.pipes[pipe]  # type: ignore[index]
            try:
                kind, what = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                job.process.join()
                kind, what = "failed", f"its process died with exit code {job.process.exitcode}"
            if kind == "row":
                self.told(job, what)
                continue
            del self.pipes[pipe]  # type: ignore[arg-type]
            job.process.join()
            if kind == "storage":
                raise StorageError(what)
            if kind == "interrupted":
                raise KeyboardInterrupt
            done.append((job, what))
        self.idle()
        return done

    def close(self) -> None:
        """Ends the runs that are still going; they go on from their checkpoints the next time."""
        for job in self.pipes.values():
            job.process.terminate()
        for pipe, job in self.pipes.items():
            pipe.close()  # or one that is telling something would wait for us, and we for it
            job.process.join()
        self.pipes = {}


class OnRay:
    """Runs on a Ray cluster, as many at a time as it has cores. What comes while a batch is under way waits for its end."""

    size = 1 << 30

    def __init__(self, address: str) -> None:
        self.address, self.waiting = address, []  # type: tuple[str, list[Job]]
        self.batch: list[Job] = []
        self.answers: Iterator[tuple[int, str | None]] | None = None

    def start(self, job: Job, fed: Any) -> None:
        self.waiting.append(job)  # its data are loaded where it runs

    def ended(self) -> list[tuple[Job, str | None]]:
        """Waits for the next run."""
        from fedkeel.study.running.ray_runs import run_all

        if self.answers is None:
            self.batch, self.waiting = self.waiting, []
            configs, outs = [job.config for job in self.batch], [job.out for job in self.batch]
            self.answers = run_all(configs, outs, self.address, [job.fresh for job in self.batch])
        answer = next(self.answers, None)
        if answer is None:
            self.answers = None
            return []
        number, error = answer
        if error is None:
            self.batch[number].tidy()
        return [(self.batch[number], error)]

    def close(self) -> None:
        if self.answers is not None:
            self.answers.close()  # type: ignore[attr-defined]


def _serve(job: Job, fed: Any, pipe: Connection, others: list[Connection], driver: int) -> None:
    """The life of a run's process."""
    import torch

    die_with(driver)
    torch.set_num_threads(1)  # threads that the study's own process may have started do not live here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the study's business
    if job.trackers:  # they are told that the run was stopped
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    for other in others:
        other.close()
    with contextlib.suppress(BrokenPipeError):
        try:
            error = carry_out(job, fed, lambda row: pipe.send(("row", row)), workers=1)
            pipe.send(("failed" if error else "done", error))
        except StorageError as problem:
            pipe.send(("storage", str(problem)))
        except KeyboardInterrupt:
            pipe.send(("interrupted", None))
    pipe.close()
    os._exit(0)  # not through the exit handlers of the study's own process
