"""Who trains the runs of a study: this process, one forked process per run, or a Ray cluster.

`concurrent.futures` cannot do what studies promise:
- A process is forked for every run, after its data were loaded, so that all runs share one copy of the data.
- A run that dies (of too little memory, say) is reported and harms no other. With a `ProcessPoolExecutor` all other runs
  would fail, too.
- Ctrl-C ends the runs at once, and a pipe carries every round to the progress bar.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple, Protocol, cast

import fedkeel.runs.from_config as from_config
from fedkeel.engine.forked import defer_ctrl_c, die_with
from fedkeel.engine.machine import forget_peak
from fedkeel.errors import StorageError, in_words
from fedkeel.study.running.plan import StudyRun

WAIT = 0.25  # seconds until the progress bar is drawn again

Row = dict[str, Any]  # of a run's history
Ended = list[tuple[StudyRun, str | None]]  # runs, each with its error


class Pool(Protocol):
    """What the scheduler needs to train runs."""

    size: int  # runs at a time

    def start(self, run: StudyRun, fed: Any) -> None: ...

    def ended(self) -> Ended:
        """The runs that have ended since the last call. May wait for one, and may return none."""
        ...

    def close(self) -> None:
        """Stops the runs that have not ended. They continue from their checkpoints the next time."""
        ...


def make_pool(
    jobs: int, ray: str | None, slurm: str | None, on_row: Callable[[StudyRun, Row], None], on_wait: Callable[[], None]
) -> Pool:
    """ray: the address of a cluster. slurm: what `--slurm` says.

    on_row: called with every round of a run. on_wait: called every moment.
    """
    if ray is not None:
        from fedkeel.study.running.ray_runs import RayPool

        return RayPool(ray)
    if slurm is not None:
        from fedkeel.study.running.slurm_runs import Slurm, SlurmPool

        return SlurmPool(Slurm.read(slurm))
    if jobs > 1 and "fork" in multiprocessing.get_all_start_methods():
        return ForkPool(jobs, on_row, on_wait)
    return OneByOne(on_row)


def train(run: StudyRun, fed: Any, on_row: Callable[[Row], None], workers: int | None = None) -> str | None:
    """Trains a run in this process. Returns None, or why it failed in one line."""
    config = run.config if workers is None or run.config.workers is not None else run.config.changed(workers=workers)
    python: dict[str, Any] = {"model": run.objects.model, "keywords": run.objects.keywords}
    try:
        with contextlib.ExitStack() as stack:
            listeners = [on_row]
            if run.trackers:
                from fedkeel.runs.trackers import tracked

                listeners.append(stack.enter_context(tracked(run.trackers, run.label, config.as_dict())))

            def report(row: Row) -> None:
                for listener in listeners:
                    listener(row)

            from_config.train(config, run.out, resume=True, progress=report, fresh=run.fresh, fed=fed, **python)
    except StorageError:
        raise  # Stops the study: no other run could be written, either.
    except Exception as error:
        return in_words(error)
    run.tidy()
    return None


class OneByOne:
    """One run after the other, in this process. Each run may use all cores for its clients."""

    size = 1

    def __init__(self, on_row: Callable[[StudyRun, Row], None]) -> None:
        self.on_row = on_row
        self.done: Ended = []

    def start(self, run: StudyRun, fed: Any) -> None:
        forget_peak()
        self.done.append((run, train(run, fed, lambda row: self.on_row(run, row))))

    def ended(self) -> Ended:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        pass


class Going(NamedTuple):
    """A run whose process has not ended."""

    run: StudyRun
    process: ForkProcess

    def end(self, error: str | None) -> tuple[StudyRun, str | None]:
        self.process.join()
        return self.run, error


class ForkPool:
    """`size` runs at a time, each in a process of one thread."""

    def __init__(self, size: int, on_row: Callable[[StudyRun, Row], None], on_wait: Callable[[], None]) -> None:
        self.size, self.on_row, self.on_wait = size, on_row, on_wait
        self.context = multiprocessing.get_context("fork")
        self.going: dict[Connection, Going] = {}

    def start(self, run: StudyRun, fed: Any) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_in_fork, args=(run, fed, theirs, [ours, *self.going], os.getpid()))
        with defer_ctrl_c():  # Otherwise Ctrl-C could leave a process that `close` does not know.
            process.start()
            theirs.close()
            self.going[ours] = Going(run, process)

    def ended(self) -> Ended:
        done: Ended = []
        for pipe in cast(list[Connection], wait(list(self.going), timeout=WAIT)):
            going = self.going[pipe]
            try:
                kind, content = pipe.recv()
            except EOFError:
                going.process.join()
                kind, content = "ended", f"its process died with exit code {going.process.exitcode}"
            if kind == "row":
                self.on_row(going.run, content)
                continue
            del self.going[pipe]
            done.append(going.end(content))
            if kind == "storage":
                raise StorageError(content)
            if kind == "interrupted":
                raise KeyboardInterrupt
        self.on_wait()
        return done

    def close(self) -> None:
        for going in self.going.values():
            going.process.terminate()
        for pipe, going in self.going.items():
            pipe.close()  # Otherwise a process that is sending a row would wait for us, and we for it.
            going.process.join()
        self.going = {}


def _in_fork(run: StudyRun, fed: Any, pipe: Connection, others: list[Connection], parent: int) -> None:
    """What the process of a run does, from its beginning to its end."""
    import torch

    die_with(parent)
    torch.set_num_threads(1)  # A fork has none of the threads that its parent's torch may have started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    # Trackers learn from a KeyboardInterrupt that the run was stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler if run.trackers else signal.SIG_DFL)
    for other in others:
        other.close()
    with contextlib.suppress(BrokenPipeError):
        try:
            pipe.send(("ended", train(run, fed, lambda row: pipe.send(("row", row)), workers=1)))
        except StorageError as error:
            pipe.send(("storage", str(error)))
        except KeyboardInterrupt:
            pipe.send(("interrupted", None))
    pipe.close()
    os._exit(0)  # Otherwise the exit handlers of the parent would run here, too.
