"""Runs side by side: a process of one thread for each, as many at a time as there are cores.

A process is forked for every run, so that data which the study has loaded are shared and a run that dies (of too little
memory, say) takes nothing with it. What it finds lies in its directory; a pipe carries rows of its history for the display.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedkeel import config as runs
from fedkeel.config import RunConfig
from fedkeel.engine.checkpoint import StorageError
from fedkeel.study.trackers import tracked

PATIENCE = 0.25  # seconds between two looks at the display
HEAVY = ("checkpoint.safetensors", "clients.bin", "model.safetensors")  # what the numbers of a run do not need


@dataclass(eq=False)
class Job:
    """One run of a study."""

    name: str
    config: RunConfig
    out: Path
    fresh: bool = False
    keep: bool = True
    trackers: dict[str, str] = field(default_factory=dict)
    process: Any = None


Told = Callable[[Job, dict[str, Any]], None]  # called with a row of a run's history


def carry_out(job: Job, fed: Any, told: Callable[[dict[str, Any]], None], workers: int | None = None) -> str | None:
    """Runs a job in this process; the error in one line if it failed, None if it is complete."""
    from fedkeel.engine.sequential import describe

    config = job.config if workers is None or job.config.workers is not None else job.config.changed(workers=workers)
    try:
        with tracked(job.trackers, "-".join(job.out.parts[-2:]), config.model_dump(exclude_none=True)) as log:
            runs.run(config, job.out, resume=True, progress=lambda row: (told(row), log(row)), fresh=job.fresh, fed=fed)
    except StorageError:  # the next run would have nowhere to go, either
        raise
    except Exception as error:
        return str(error) if isinstance(error, ValueError | RuntimeError) else describe(error)
    if not job.keep:
        for name in HEAVY:
            (job.out / name).unlink(missing_ok=True)
    return None


class Here:
    """One run after the other, in this process; a run may then use all cores for its clients."""

    size = 1

    def __init__(self, told: Told) -> None:
        self.told = told
        self.done: list[tuple[Job, str | None]] = []

    def start(self, job: Job, fed: Any) -> None:
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
        for job in self.pipes.values():
            job.process.join()
        self.pipes = {}


def _serve(job: Job, fed: Any, pipe: Connection, others: list[Connection], driver: int) -> None:
    """The life of a run's process."""
    from fedkeel.engine.processes import die_with

    die_with(driver)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the study's business
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
