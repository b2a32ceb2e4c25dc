"""The round loop: sample, run clients, aggregate, evaluate, checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import STEPS, Algorithm, Plan
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import check_finite, down_record, floats, form
from fedkeel.core.registry import defaults
from fedkeel.core.round import Round
from fedkeel.core.steps import Objective
from fedkeel.core.trial import check_records
from fedkeel.data.federation import Federation
from fedkeel.engine import seeding
from fedkeel.engine.client_work import Jobs, Private, Uploads, Work, one_thread
from fedkeel.engine.evaluation import evaluate
from fedkeel.engine.metrics import Seen, measure
from fedkeel.engine.result import Clients, Run
from fedkeel.engine.runners.engine import Engine
from fedkeel.engine.settings import Settings
from fedkeel.engine.state.checkpoint import check_same, load_checkpoint, save_checkpoint, server_from
from fedkeel.engine.state.directory import RunDirectory
from fedkeel.engine.state.store import open_store
from fedkeel.errors import RoundError, describe

HOPELESS = 10  # clients; if the first so many of a warm-up all fail, the others are not asked
CHECKPOINT_SHARE = 0.03  # of the time may go into checkpoints


@dataclass
class Answers:
    """What an exchange with the clients brought."""

    r: Round
    up: float  # mean floats that a client sent
    loss: float  # weighted mean of the clients' losses
    faults: dict[str, str]  # client -> why it was dropped
    uploads: Any  # record of [S, ...]
    told: dict[str, Any]  # what else the row of the round shall say
    cause: Exception | None  # the first fault, where it happened in this process


def nobody(up: Any) -> Any:
    """The uploads of no client, [0, ...], like this one."""
    return type(up)(*(z.new_empty((0, *z.shape)) for z in up))


class Trainer:
    """One run. `train` makes it, calls `fit` and returns its result."""

    def __init__(
        self,
        model: FlatModel,
        fed: Federation,
        algo: Algorithm,
        settings: Settings,
        objective: Objective,
        engine: Engine,
        out: Path | None,
        resume: bool,
        store: str,
        config: dict[str, Any],
        metrics: Sequence[str] = (),
    ) -> None:
        self.model, self.fed, self.settings, self.engine, self.config = model, fed, settings, engine, config
        self.metrics = metrics
        self.N, self.S = len(fed), settings.largest_cohort(len(fed))
        K, fewest = float(settings.steps_of(fed.sizes).mean()), settings.smallest_cohort(self.N)
        self.given, self.algo = algo, algo.plan(Plan(N=self.N, S=self.S, K=K, T=settings.rounds, fewest=fewest))
        settings.check_decay(self.algo)
        self.work = Work(self.algo, fed, objective, settings.seed, settings.batch, settings.lr_decay)
        self.objective, self.buffers = objective, model.read_buffers()
        self.history: list[dict[str, Any]] = []
        self.t = 0
        self.warm = not self.algo.warms_up()
        self.warmup: dict[str, Any] = {}  # what the warm-up cost a client, and who failed in it; told in the first row
        check_records(self.algo)
        self.server, initial = self.algo.init(model.vector())
        if algo.facts.private and initial is not None:
            raise ValueError(f"{algo.name}: it is private, so its clients keep their layers and no record of their own")
        self.initial = Private(self.buffers) if model.private else initial
        self.directory = None if out is None else RunDirectory(out, resume)
        self.fingerprint = None if out is None else fed.fingerprint()
        self.frozen = None if out is None else model.frozen()
        # Room for those who can take part, not for all: a sparse file has a largest size, too.
        seen = self.N if self.algo.warms_up() else min(self.N, settings.rounds * self.S)
        path = None if self.directory is None else self.directory.store
        self.store = engine.remote.store if engine.remote else open_store(self.initial, seen, self.S, path, store == "disk")
        if self.directory is not None and self.directory.checkpoint.exists():
            self._restore(self.directory.checkpoint)
        self._saved, self._cost = time.monotonic(), 0.0

    # The loop -----------------------------------------------------------------------------------------------------

    def fit(self, report: Callable[[dict[str, Any]], None]) -> Run:
        if self.directory is not None:
            self.directory.begin(self.config, self.history)
        for row in self.history:
            report(row)
        with one_thread(), contextlib.ExitStack() as stack:
            if self.t < self.settings.rounds:
                jobs = self._jobs("client", self.t, self.settings.participants(self.t, self.N))
                runner = self.engine.start(self.work, self.store, self.initial, jobs, self.S, self.settings.rounds - self.t)
                stack.callback(runner.close)
                self._checkpoint(due=self.t == 0)
                if not self.warm:
                    self._warm_up(runner)
                while self.t < self.settings.rounds:
                    report(self._round(runner))
            return self._result()

    def _round(self, runner: Any) -> dict[str, Any]:
        start, t = time.perf_counter(), self.t
        ids = self.settings.participants(t, self.N)
        expected, up, faults = len(ids), 0.0, {}
        if self.algo.surveys(t):
            survey = self._exchange(runner, self._jobs("survey", t, ids))
            up, faults = survey.up, survey.faults
        # Roles are those of the survey, also if somebody was dropped in it.
        jobs = self._jobs("client", t, ids).only([at for at, client in enumerate(ids) if str(client) not in faults])
        old = self.server
        answers = self._exchange(runner, jobs)
        row = {
            "round": t,
            "train_loss": answers.loss,
            "up": up + answers.up,
            "down": floats(jobs.down),
            "clients": answers.r.S,
            "dropped": expected - answers.r.S,
            "faults": faults | answers.faults,
        }
        try:
            row |= answers.told | self._evaluation(t) | (self.warmup if t == 0 else {})
            if self.metrics and self._evaluates(t):
                row |= self._measured(old, answers)
        except Exception as error:
            raise RoundError(self.algo.name, t, None, "evaluate", describe(error)) from error
        row["seconds"] = time.perf_counter() - start
        self.t = t + 1
        self.history.append(row)
        if self.directory is not None:
            self.directory.add(row)
        self._checkpoint(due=self.t == self.settings.rounds or self.engine.remote is not None)
        return row

    def _exchange(self, runner: Any, jobs: Jobs, last: bool = True) -> Answers:
        """Clients do the work of `jobs`, the server its step with what came back; the clients' records are kept."""
        step = STEPS[jobs.stage]
        uploads = runner.run(jobs)
        faults = {str(jobs.ids[position]): why for position, why in sorted(uploads.faults.items())}
        if jobs.stage != "warmup":  # whose parts count together
            self._enough(jobs, uploads, faults)
        kept = [position for position in range(len(jobs.ids)) if position not in uploads.faults]
        r = self._facts(jobs, kept, last)
        up, buffers, losses = uploads.up or nobody(self.work.uploads()[jobs.stage]), uploads.buffers, uploads.losses
        if uploads.faults:
            up, buffers, losses = type(up)(*(z[kept] for z in up)), buffers[kept], losses[kept]
        try:
            new = getattr(self.algo.at(jobs.t, self.settings.lr_decay), step)(self.server, up, r)
            if form(new) != form(self.server):
                raise ValueError(f"the server record has another form than before: {form(new)}, not {form(self.server)}")
            check_finite(new, without=self.algo.facts.owns)  # too large for every round; their rows came as uploads
            self.server = new
        except Exception as error:
            raise RoundError(self.algo.name, jobs.t, None, step, describe(error)) from error
        if self.model.has_buffers and step == "server":
            self.buffers = r.avg(buffers)
        for position, slot in uploads.slots.items():
            if position in uploads.faults:
                self.store.discard(slot)
            else:
                self.store.commit(jobs.ids[position], slot)
        loss = math.fsum((r.p * losses).tolist())  # exact: a dot product may depend on where the numbers lie
        return Answers(r, self._cost_up(up, r), loss, faults, up, uploads.told, uploads.cause)

    def _enough(self, jobs: Jobs, uploads: Uploads, faults: dict[str, str]) -> None:
        """Too few good answers stop the run, with a checkpoint from which it can go on."""
        if error := self._too_few(jobs.stage, jobs.t, len(jobs.ids), faults):
            for slot in uploads.slots.values():
                self.store.discard(slot)
            if jobs.stage != "client" or not self.algo.surveys(jobs.t):  # or the round's `prepare` would be done twice
                self._checkpoint(due=True)
            raise error from uploads.cause

    def _too_few(self, stage: str, t: int, asked: int, faults: dict[str, str]) -> RoundError | None:
        least, answered = min(self.settings.min_clients, asked), asked - len(faults)
        if answered >= least:
            return None
        client, why = next(iter(faults.items()))
        told = f"{answered} of {asked} clients answered, min_clients is {least}; {why}"
        return RoundError(self.algo.name, t, int(client), stage, told)

    def _jobs(self, stage: str, t: int, ids: list[int]) -> Jobs:
        drawn = self.algo.draw(seeding.generator(self.settings.seed, seeding.ROLES, t), ids)
        for name, z in drawn.items():
            if not isinstance(z, np.ndarray) or z.shape != (len(ids),):
                raise ValueError(f"{self.algo.name}: draw returns {name} = {z!r}; it must be an array of {len(ids)} numbers")
        K = drawn.pop("K").tolist() if "K" in drawn else self.settings.steps_of(self.fed.sizes[ids]).tolist()
        if not all(isinstance(k, int) and k >= 1 for k in K):
            raise ValueError(f"{self.algo.name}: draw returns K = {K}; it must be whole numbers >= 1")
        return Jobs(stage, t, ids, K, drawn, down_record(self.algo, self.server), self.buffers)

    def _facts(self, jobs: Jobs, kept: list[int], last: bool) -> Round:
        ids = np.array(jobs.ids)[kept]
        samples = torch.from_numpy(self.fed.sizes[ids]).double()
        uniform = self.settings.weights == "uniform"
        return Round(
            t=jobs.t,
            N=self.N,
            ids=torch.from_numpy(ids),
            K=torch.tensor(jobs.K, dtype=torch.float64)[kept],
            p=torch.ones_like(samples) / len(ids) if uniform else samples / samples.sum(),
            weight=torch.full_like(samples, 1 / self.N) if uniform else samples / float(self.fed.offsets[-1]),
            drawn=SimpleNamespace(**{name: torch.from_numpy(z).double()[kept] for name, z in jobs.drawn.items()}),
            last=last,
        )

    def _warm_up(self, runner: Any) -> None:
        """All clients once, a cohort's worth at a time; one that fails keeps its initial record, and is told in round 0."""
        faults: dict[str, str] = {}
        cause: Exception | None = None
        for start in range(0, self.N, self.S):
            stop = min(start + self.S, self.N)
            jobs = self._jobs("warmup", -1, list(range(start, stop)))
            answers = self._exchange(runner, jobs, last=stop == self.N)
            faults, cause = faults | answers.faults, cause or answers.cause
            all_failed = len(faults) == stop >= HOPELESS
            if error := self._too_few("warmup", -1, stop if all_failed else self.N, faults):  # who was not asked may answer
                raise error from cause
        self.warmup = {"warmup_up": answers.up, "warmup_down": floats(jobs.down), "warmup_faults": faults}
        self.warm = True
        self._checkpoint(due=True)

    def _cost_up(self, up: Any, r: Round) -> float:
        """Mean floats that a participant sent; tracked fields count for those who track."""
        tracked = [name for name in self.algo.facts.tracked if name in up._fields]
        size = {name: math.prod(z.shape[1:]) for name, z in up._asdict().items()}
        extra = sum(size.pop(name) for name in tracked)
        always = sum(size.values())
        return always + extra * float(r.drawn.tracks.mean()) if tracked else float(always)

    def _evaluates(self, t: int) -> bool:
        every, last = self.settings.evaluate_every, t == self.settings.rounds - 1
        return last or bool(every and (t + 1) % every == 0)

    def _measured(self, old: Any, answers: Answers) -> dict[str, float]:
        sizes = self.fed.sizes.astype(float)
        weights = sizes / sizes.sum() if self.settings.weights == "samples" else np.full(self.N, 1 / self.N)
        seen = Seen(self.work, old.x, old, self.server, answers.uploads, answers.r, self.store, self.buffers, weights)
        return measure(self.metrics, seen)

    def _evaluation(self, t: int) -> dict[str, Any]:
        if self.fed.test is None or not self._evaluates(t):
            return {"test_accuracy": None, "test_loss": None}
        row = self._tested(self.fed.test, self.buffers)
        if self.model.private:  # clients with layers of their own: the mean over those that took part
            ids = self.settings.participants(t, self.N)
            own = [self.store.read(i).values for i in ids if i in self.store]
            rows = [self._tested(self.fed.test, values) for values in own]
            if rows:  # clients elsewhere keep them for themselves
                row["client_accuracy"] = sum(z["test_accuracy"] or 0.0 for z in rows) / len(rows)
        return row

    def _tested(self, data: tuple[Tensor, Tensor], buffers: Tensor) -> dict[str, Any]:
        return evaluate(self.model, self.server.x, buffers, self.objective.loss, data, self.fed.prepare)

    # State on disk ------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """What must not change between a checkpoint and its continuation."""
        settings = self.settings.identity() | {"dtype": str(self.model.dtype)}
        if isinstance(settings["cohort"], Sequence):
            settings["cohort"] = hashlib.sha256(
                repr([list(ids) for ids in settings["cohort"]][: self.t]).encode()
            ).hexdigest()
        shapes = [[name, list(shape)] for name, shape in zip(self.model.names, self.model.shapes, strict=True)]
        algo = {"name": self.algo.name, **dataclasses.asdict(self.algo)}  # type: ignore[call-overload]
        frozen = {"frozen parameters": self.frozen} if self.frozen else {}
        identity = {"settings": settings, "algorithm": algo, "model": shapes, "data": self.fingerprint}
        return identity | {"client records": form(self.initial)} | frozen

    def _checkpoint(self, due: bool) -> None:
        """Writes a checkpoint if it is due, or if the last one is so long ago that another costs little."""
        if self.directory is None or not self.warm:
            return
        now = time.monotonic()
        if not due and now - self._saved < self._cost / CHECKPOINT_SHARE:
            return
        facts = {"identity": self._identity(), "history": self.history, "engine": self.engine.name, "why": self.engine.why}
        facts["warmup"] = self.warmup
        tensors = {"buffers": self.buffers, **self.store.index()}
        save_checkpoint(self.directory.checkpoint, self.t, self.server, tensors, facts)
        self.store.pin()
        self._saved = time.monotonic()
        self._cost = self._saved - now

    def _restore(self, path: Path) -> None:
        self.t, tensors, facts = load_checkpoint(path)
        self.history = facts["history"]
        then = facts["identity"]
        theory = [name for name, value in dataclasses.asdict(self.given).items() if value is None]  # type: ignore[call-overload]
        check_same(then | {"algorithm": defaults(type(self.algo)) | then["algorithm"]}, self._identity(), theory)
        if self.t > self.settings.rounds:
            raise ValueError(f"resume: the checkpoint is at round {self.t}, beyond rounds = {self.settings.rounds}")
        self.server = server_from(tensors, self.server, self.model.device)
        self.buffers = tensors["buffers"]
        self.store.restore(tensors)
        self.warm, self.warmup = True, facts["warmup"]
        if self.engine.name == "auto":
            self.engine.name, self.engine.why = facts["engine"], facts["why"]

    def _result(self) -> Run:
        module = self.model.copy()
        flat = FlatModel(module, self.algo.facts.private)
        flat.bind(self.server.x.clone())
        if flat.has_buffers:
            flat.write_buffers(self.buffers)
        for p, frozen in zip(module.parameters(), self.model.module.parameters(), strict=True):
            p.requires_grad_(frozen.requires_grad)
        out = None if self.directory is None else self.directory.path
        clients = Clients(self.store, self.N)
        who = (self.engine.name, self.engine.why)
        run = Run(self.server.x.clone(), module, self.server, clients, self.history, self.algo, *who, out)
        if self.directory is not None:
            self.directory.end(run, self.fingerprint)
        return run
