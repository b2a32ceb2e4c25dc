"""The loop over the rounds of a run.

A round samples its clients, has a runner run them, lets the method's server use their uploads, evaluates the new model, and
writes a checkpoint now and then. `Trainer.fit` is the loop, `Trainer._round` one round.

A round has one exchange with its clients (exchange.py): the method's `client` makes the uploads, its `server` uses them.
Methods with a survey have another exchange before it. Methods with a warm-up begin with exchanges that reach all clients
once.

A run that is killed goes on from its last checkpoint. It computes the rounds after that again, with the same numbers.
A warm-up that is killed starts again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.device import named_devices, wait_for
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import check_records, floats
from fedkeel.core.steps import Objective
from fedkeel.data.federation import Federation
from fedkeel.engine.callbacks import Callback, RoundState, call_all
from fedkeel.engine.client_work import ClientWork, PrivateLayers
from fedkeel.engine.evaluation import RoundEvaluation
from fedkeel.engine.exchange import Exchanges, TooFewAnswers
from fedkeel.engine.machine import keep_freed_memory, one_thread
from fedkeel.engine.objective import loss_name, prepared
from fedkeel.engine.own_code import NO_CODE, OwnCode
from fedkeel.engine.own_metrics import OwnMetrics, own_metrics
from fedkeel.engine.result import Run, run_of
from fedkeel.engine.runners.runner import EngineChoice, Remote, Runner
from fedkeel.engine.settings import Settings
from fedkeel.engine.state.checkpoint import Checkpoint, Part, RunState, run_identity, save_checkpoint
from fedkeel.engine.state.directory import RunDirectory
from fedkeel.engine.state.store import open_store
from fedkeel.errors import RoundError, describe

if TYPE_CHECKING:
    from fedkeel.channel.channel import Channel
    from fedkeel.engine.attendance import Attendance
    from fedkeel.engine.held_out import HeldOut
    from fedkeel.engine.participation import Schedule

GIVE_UP_AFTER = 10  # clients; a warm-up stops if all of its clients failed so far, and they were at least this many
CHECKPOINT_SHARE = 0.03  # the part of the time that may go into checkpoints
Progress = bool | Callable[[dict[str, Any]], None]  # a bar on the screen, or a function that gets every row of the history
INTERRUPTED = "interrupted"  # why a run ended that Ctrl-C stopped
NO_METRICS = OwnMetrics()


class Trainer:
    """One run. `train` makes a Trainer, calls `fit` and returns its result.

    What a run does not use is None: channel (privacy, compression, robust means, attacks), schedule (clients that come and
    go), attendance (who came), held (validation data), directory.
    """

    def __init__(
        self,
        model: FlatModel,
        fed: Federation,
        algo: Algorithm,
        settings: Settings,
        objective: Objective,
        engine: EngineChoice,
        directory: RunDirectory | None,
        store: str,
        config: dict[str, Any],
        metrics: OwnMetrics = NO_METRICS,
        callbacks: Sequence[Callback] = (),
        returns_partial: bool = False,
    ) -> None:
        """returns_partial: after Ctrl-C, `fit` returns the run so far, if a round is complete."""
        self.model, self.settings, self.objective, self.engine = model, settings, objective, engine
        self.directory, self.config, self.callbacks = directory, config, callbacks
        self.returns_partial = returns_partial
        self._set_clients(fed)
        self.given = algo  # as the user gave it; `plan` fills in what follows from N, S, K and T
        K, fewest = float(settings.steps_of(self.fed.sizes).mean()), settings.smallest_cohort(self.N)
        self.algo = algo.plan(Plan(N=self.N, S=self.S, K=K, T=settings.rounds, fewest=fewest, layers=model.layers))
        settings.check_decay(self.algo)
        self._set_channel()
        work = ClientWork(self.algo, self.fed, objective, settings.seed, settings.batch, settings.lr_decay)
        check_records(self.algo, model.layers)
        server, initial = self.algo.init(model.vector())
        if algo.facts.private and initial is not None:
            raise ValueError(
                f"{algo.name}: it is private: its clients keep their layers, so init must not declare a client record"
            )
        model.check("init: server record", server)
        self.state = RunState(server, model.read_buffers(), warmed_up=not self.algo.warms_up())
        self.initial = model.to_host(PrivateLayers(self.state.buffers) if model.private else initial)
        if not model.on_host:
            wait_for(model.device)
        self.fingerprint = None if directory is None else fed.fingerprint()
        self.frozen = None if directory is None else model.frozen()
        # The store has room for the clients that can ever take part. Room for all N could exceed the largest file that the
        # system allows, even if most of it is never used.
        most_clients = self.N if self.algo.warms_up() else min(self.N, settings.rounds * self.S)
        path, remote = None if directory is None else directory.store, engine.remote
        self.store = remote.store if remote else open_store(self.initial, most_clients, self.S, path, store == "disk")
        self.exchanges = Exchanges(work, settings, self.state, self.store, self.schedule, self.channel)
        self.evaluation = RoundEvaluation(work, settings, self.store, fed, self.held, metrics, remote)
        if directory is not None:
            directory.recover(self._restore)
        self._saved, self._seconds_to_write = time.monotonic(), 0.0

    def _set_clients(self, fed: Federation) -> None:
        """What clients train on, and who takes part."""
        settings = self.settings
        self.fed, self.N, self.S = fed, len(fed), settings.largest_cohort(len(fed))
        self.held: HeldOut | None = None
        if settings.validation:
            from fedkeel.engine.held_out import hold_out

            self.held = hold_out(fed, settings.validation, settings.seed)
            self.fed = self.held.training
        # Without a schedule, every round has S of all clients, drawn at random.
        self.schedule: Schedule | None = None if settings.is_plain_cohort else settings.schedule(self.fed)
        self.attendance: Attendance | None = None
        if settings.participation is not None:  # the user chose who is there, so the run writes down who came
            from fedkeel.engine.attendance import Attendance

            self.attendance = Attendance(self.N)

    def _set_channel(self) -> None:
        """What happens to an upload between client and server."""
        self.channel: Channel | None = None
        self.parts: dict[str, Part] = {}  # what a checkpoint keeps beside server, buffers and client memory, by name
        if self.settings.has_channel:
            from fedkeel.engine.conditions import open_channel

            schedule = self.schedule or self.settings.schedule(self.fed)
            self.channel = open_channel(self.settings, self.algo, self.model, schedule, self.engine.remote is not None)
        if self.channel is not None:
            self.fed = self.channel.attacked(self.fed)
            self.parts["channel"] = self.channel
            if self.engine.remote is not None:
                self.engine.remote.channel = self.channel

    # The loop -----------------------------------------------------------------------------------------------------

    def fit(self, report: Callable[[dict[str, Any]], None]) -> Run:
        state = self.state
        if self.directory is not None:
            self.directory.begin(self.config, state.history, self.fed.schema)
        for row in state.history:
            report(row)
        began, before = state.t, (state.server, state.buffers)  # at the start of the running round
        with one_thread(*self.engine.devices, self.model.device), contextlib.ExitStack() as stack:
            if self._goes_on():
                runner = self._start_runner()
                stack.callback(runner.close)
                self._checkpoint(due=True)  # the run can be resumed from here; measures what a checkpoint costs
                if not state.warmed_up:
                    self._warm_up(runner)
                try:
                    while self._goes_on():
                        began, before = state.t, (state.server, state.buffers)
                        report(self._round(runner))
                except KeyboardInterrupt:
                    if not self.returns_partial or not state.t:
                        raise
                    if state.t == began:  # in the middle of a round: back to its start
                        state.server, state.buffers = before
                        state.history = state.history[:began]
                    state.stopped = INTERRUPTED
            return self._result()

    def _start_runner(self) -> Runner:
        t, time = self.state.t, self.exchanges.time
        # Only an example. The engine takes timings and shapes from it.
        example = self.exchanges.plan("client", t, self.exchanges.participants(t)[: self.S] or [0])
        rounds = self.settings.rounds - t
        runner = self.engine.start(self.exchanges.work, self.store, self.initial, example, self.S, rounds)
        return runner if time is None else time.with_older_models(runner)

    def _goes_on(self) -> bool:
        t = self.state.t
        if t >= self.settings.rounds or self.state.stopped:
            return False
        # Would the next round spend more privacy than the run may?
        return self.channel is None or not self.channel.spent_after(t, self.exchanges.participants(t))

    def _round(self, runner: Runner) -> dict[str, Any]:
        start, t = time.perf_counter(), self.state.t
        exchange, columns = self.exchanges.select(t)
        ids = exchange.ids
        if not ids:
            return self._end_round(start, self._empty_row(t) | columns)
        up, up_bytes, survey_loss, faults = 0.0, 0.0, math.nan, dict[str, str]()
        try:
            if self.algo.surveys(t):
                survey = self.exchanges.run(runner, dataclasses.replace(exchange, stage="survey"))
                up, up_bytes, survey_loss, faults = survey.up, survey.up_bytes, survey.loss, survey.faults
                # What the server sends has changed. The clients keep the roles that they had in the survey.
                down, buffers = self.exchanges.sent()
                exchange = dataclasses.replace(exchange, down=down, buffers=buffers)
                exchange = exchange.only([position for position, i in enumerate(ids) if str(i) not in faults])
            old = self.state.server
            result = self.exchanges.run(runner, exchange)
        except TooFewAnswers as error:
            # After a survey the server record is no longer that of the start of the round. A checkpoint here would make a
            # resumed run use the survey twice.
            if error.stage != "client" or not self.algo.surveys(t):
                self._checkpoint(due=True)
            raise
        row = {
            "round": t,
            "train_loss": survey_loss if math.isnan(result.loss) else result.loss,  # FedAWE trains in the survey
            "up": up + result.up,
            "down": floats(exchange.down),
            "up_bytes": up_bytes + result.up_bytes,
            "down_bytes": self.exchanges.down_bytes(exchange.down),
            "clients": result.r.S,
            "dropped": len(ids) - result.r.S,
            "faults": faults | result.faults,
        }
        try:
            row |= {} if self.channel is None else self.channel.columns()
            row |= result.extra_columns | columns | self.evaluation.test_scores(self.state, ids)
            row |= self.state.warmup_columns if t == 0 else {}
            if self.settings.metrics and self.settings.evaluates(t):
                row |= self.evaluation.measured(old, self.state, result.uploads, result.r)
            row |= self.evaluation.other_scores(self.state, row, exchange.lr_factor)
        except Exception as error:
            raise RoundError(self.algo.name, t, None, "evaluate", describe(error)) from error
        if self.attendance is not None:
            row |= self.attendance.add(t, result.r.ids.tolist())
        return self._end_round(start, row)

    def _empty_row(self, t: int) -> dict[str, Any]:
        """The row of a round to which nobody came: it changes nothing and costs nothing."""
        row: dict[str, Any] = {"round": t, "train_loss": math.nan, "up": 0.0, "down": 0, "clients": 0, "dropped": 0}
        row |= {"up_bytes": 0.0, "down_bytes": 0}
        if self.channel is not None:
            self.channel.count("client", t, [])
            row |= self.channel.columns()
        row |= {"faults": {}} | self.evaluation.test_scores(self.state, [])
        row |= self.state.warmup_columns if t == 0 else {}
        row |= self.evaluation.other_scores(self.state, row, self.exchanges.lr_factor(t))
        return row | (self.attendance.add(t, []) if self.attendance is not None else {})

    def _end_round(self, start: float, row: dict[str, Any]) -> dict[str, Any]:
        """Writes down the row of a round that began at `start`."""
        state = self.state
        row["seconds"] = time.perf_counter() - start
        state.history.append(row)
        if self.callbacks:
            seen = RoundState(state.history, self.settings.evaluates(state.t), self._run)
            with torch.enable_grad():
                state.stopped = call_all(self.callbacks, row, seen)
        state.t += 1
        if self.directory is not None:
            self.directory.history.add(row)
        self._checkpoint(due=not self._goes_on() or self.engine.remote is not None)
        return row

    def _warm_up(self, runner: Runner) -> None:
        """Runs all clients once, S at a time. A client that fails keeps its initial record; the row of round 0 names it."""
        faults: dict[str, str] = {}
        cause: Exception | None = None
        for start in range(0, self.N, self.S):
            stop = min(start + self.S, self.N)
            exchange = self.exchanges.plan("warmup", -1, list(range(start, stop)))
            result = self.exchanges.run(runner, exchange, last=stop == self.N)
            faults, cause = faults | result.faults, cause or result.cause
            all_failed = len(faults) == stop >= GIVE_UP_AFTER
            # Stop early in two cases: min_clients can no longer be reached, or all clients failed so far.
            if error := self.exchanges.too_few("warmup", -1, stop if all_failed else self.N, faults):
                raise error from cause
        costs = {"warmup_up": result.up, "warmup_down": floats(exchange.down), "warmup_faults": faults}
        costs |= {"warmup_up_bytes": result.up_bytes, "warmup_down_bytes": self.exchanges.down_bytes(exchange.down)}
        self.state.warmup_columns, self.state.warmed_up = costs, True
        self._checkpoint(due=True)

    # State on disk, and the result --------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What another run must have in common with this one to go on from its checkpoint."""
        conditions = {
            "participation": None if self.schedule is None else self.schedule.identity,
            "loss": loss_name(self.objective.step or self.objective.loss),
        } | self.settings.conditions()
        parts = (self.settings, self.algo, self.model, self.initial, self.state.t)
        return run_identity(*parts, data=self.fingerprint, frozen=self.frozen, conditions=conditions)

    def _checkpoint(self, due: bool) -> None:
        """Writes a checkpoint if it is due, or if writing it takes less than CHECKPOINT_SHARE of the time since the
        last one."""
        state = self.state
        if self.directory is None or not state.warmed_up:
            return
        now = time.monotonic()
        if not due and now - self._saved < self._seconds_to_write / CHECKPOINT_SHARE:
            return
        facts: dict[str, Any] = {"identity": self.identity(), "engine": self.engine.name, "why": self.engine.why}
        facts |= {"extent": self.directory.history.sync(), "rounds": self.settings.rounds, "clients": self.N}
        facts |= {"warmup": state.warmup_columns, "stopped": state.stopped}
        tensors = {"buffers": state.buffers, **self.store.index()}
        if state.best is not None:
            facts["best"], tensors = state.best.scores(), tensors | state.best.tensors()
        if self.exchanges.time is not None:
            tensors |= self.exchanges.time.tensors()
        paths = self.directory.checkpoint, self.directory.previous
        save_checkpoint(*paths, state.t, state.server, tensors, facts, self.parts)
        self.store.pin()  # only now may slots be overwritten that only the older checkpoints need
        self._saved = time.monotonic()
        self._seconds_to_write = self._saved - now

    def _restore(self, saved: Checkpoint, history: list[dict[str, Any]]) -> None:
        from fedkeel.engine.state.resume import restore

        restore(self, saved, history)

    def _result(self) -> Run:
        """The result in memory, and in the directory of the run if there is one."""
        run = self._run()
        if self.directory is not None and self.state.stopped != INTERRUPTED:
            self.directory.end(run, self.fingerprint)
        return run

    def _run(self) -> Run:
        """The run so far."""
        out = None if self.directory is None else self.directory.path
        return run_of(self.state, self.model, self.algo, self.store, self.N, self.engine, out, self.config)


def run_training(
    model: nn.Module | Callable[[], nn.Module],
    fed: Federation,
    algo: Algorithm,
    settings: Settings,
    config: dict[str, Any],
    own: OwnCode = NO_CODE,
    dtype: torch.dtype | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress = True,
    store: str = "auto",
    remote: Remote | None = None,
    returns_partial: bool = False,
) -> Run:
    """As `train`, for settings that `Settings.check_with` has checked. What is left to check needs the model.

    returns_partial: Ctrl-C returns the run so far, if a round is complete.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError("train: inside torch.inference_mode() nothing can be trained; call it outside")
    keep_freed_memory()
    devices = named_devices(settings.devices) if settings.devices else ()
    device = str(devices[0]) if devices else settings.device
    flat, fed, goal = prepared(model, fed, algo, settings, own, dtype, device, remote is not None)
    ray = {"address": settings.ray_address, "device": settings.device}
    engine = EngineChoice(settings.engine, settings.workers, settings.timeout, ray, remote, devices)
    metrics = own_metrics(own.metrics, flat.device) if own.metrics else NO_METRICS
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(RunDirectory(Path(out), resume)) if out else None
        parts = (flat, fed, algo, settings, goal, engine, folder, store, config, metrics, own.callbacks, returns_partial)
        trainer = Trainer(*parts)
        if callable(progress):
            return trainer.fit(progress)
        if not progress:
            return trainer.fit(lambda row: None)
        from fedkeel.engine.progress import progress_bar

        return trainer.fit(stack.enter_context(progress_bar(algo.name, settings.rounds)))
