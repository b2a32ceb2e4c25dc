"""Whole runs of a study as jobs of a Slurm cluster, by submitit.

All nodes must see the directory of the study. Runs that can start at the same time are one array of jobs. A job that
reaches its time limit is put into the queue again, and its run goes on from its checkpoint.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.errors import in_words, nearest, refuse
from fedkeel.runs.config import RunConfig
from fedkeel.study.running.on_node import train_in_place
from fedkeel.study.running.plan import StudyRun
from fedkeel.wording import literal

WAIT = 0.5  # seconds between two looks at the jobs
AGAIN = 1000  # how often a job that reaches its time limit is queued again
FORM = "for example partition=short,hours=4,at-most=20"


@dataclass(frozen=True)
class Slurm:
    """What `--slurm` says."""

    partition: str = ""  # "": the default of the cluster
    hours: float = 1.0  # time limit of a job
    at_most: int = 100  # jobs at a time
    cluster: str = "slurm"  # "local": jobs on this machine, to try it out

    @classmethod
    def read(cls, text: str) -> Slurm:
        found: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            key, equals, value = part.partition("=")
            key = key.strip().replace("-", "_")
            if key not in cls.__dataclass_fields__ or not equals:
                known = [name.replace("_", "-") for name in cls.__dataclass_fields__]
                raise ValueError(f"slurm = {text!r} is not allowed{nearest(key, known)}; {FORM}")
            found[key] = value if key in ("partition", "cluster") else literal(value)
        made = cls(**found)
        if isinstance(made.hours, str | bool) or not made.hours > 0:
            raise refuse("slurm: hours", made.hours, "a number > 0")
        if isinstance(made.at_most, bool) or not isinstance(made.at_most, int) or made.at_most < 1:
            raise refuse("slurm: at-most", made.at_most, "a whole number >= 1")
        if made.cluster not in ("slurm", "local"):
            raise refuse("slurm: cluster", made.cluster, "slurm or local")
        return made


class TrainOnNode:
    """What a job does. submitit calls `checkpoint` shortly before the time limit, and queues what it returns."""

    def __call__(self, values: dict[str, Any], out: Path, fresh: bool, has_test: bool) -> str | None:
        """Returns why the run failed, in one line."""
        import torch

        torch.set_num_threads(1)
        config = RunConfig(**values)
        engine = "sequential" if config.engine in ("auto", "processes", "ray") else config.engine
        try:
            train_in_place(config.changed(engine=engine, ray_address="local"), out, fresh, has_test)
        except Exception as error:
            return in_words(error)
        return None

    def checkpoint(self, values: dict[str, Any], out: Path, fresh: bool, has_test: bool) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, values, out, False, has_test)  # not fresh: its rounds so far count


class SlurmPool:
    """At most `size` jobs at a time."""

    def __init__(self, given: Slurm) -> None:
        self.given, self.size = given, given.at_most
        self.waiting: list[StudyRun] = []  # started since the last look at the jobs; they become one array
        self.going: list[tuple[StudyRun, Any]] = []

    def start(self, run: StudyRun, fed: Any) -> None:
        """fed is not used: the node that trains loads the data."""
        run.out.mkdir(parents=True, exist_ok=True)
        self.waiting.append(run)

    def ended(self) -> list[tuple[StudyRun, str | None]]:
        if self.waiting:
            self._submit()
        done = [(run, job) for run, job in self.going if job.done()]
        self.going = [pair for pair in self.going if pair not in done]
        if not done:
            time.sleep(WAIT)
        return [(run, self._error(run, job)) for run, job in done]

    def _submit(self) -> None:
        executor = self._executor(self.waiting[0].out.parent / "slurm")
        with executor.batch():
            jobs = [
                executor.submit(TrainOnNode(), run.config.given, run.out.absolute(), run.fresh, run.has_test)
                for run in self.waiting
            ]
        self.going += zip(self.waiting, jobs, strict=True)
        self.waiting = []

    def _executor(self, folder: Path) -> Any:
        try:
            import submitit
        except ImportError:
            raise ImportError("slurm needs submitit: pip install 'fedkeel[slurm]'") from None
        made = submitit.AutoExecutor(folder=folder, cluster=self.given.cluster, slurm_max_num_timeout=AGAIN)
        how: dict[str, Any] = {"timeout_min": max(1, round(60 * self.given.hours)), "name": "fedkeel"}
        how |= {"slurm_array_parallelism": self.given.at_most, "cpus_per_task": 1}
        how |= {"slurm_partition": self.given.partition} if self.given.partition else {}
        made.update_parameters(**how)
        return made

    @staticmethod
    def _error(run: StudyRun, job: Any) -> str | None:
        try:
            error: str | None = job.result()
        except Exception as lost:  # The job was cancelled, or its node died. submitit's text names its logs.
            return " ".join(str(lost).split()) or type(lost).__name__
        if error is None:
            run.tidy()
        return error

    def close(self) -> None:
        for _, job in self.going:
            job.cancel()
        self.going = []
