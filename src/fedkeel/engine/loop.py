"""The loop over the rounds of a run.

A round samples its clients, has a runner run them, lets the method's server use their uploads, evaluates the new model, and
writes a checkpoint now and then. `Trainer.fit` is the loop, `Trainer._round` one round.

A round has one exchange with its clients: the method's `client` makes the uploads, its `server` uses them. Methods with a
survey have another exchange before it. Methods with a warm-up begin with exchanges that reach all clients once.

A run that is killed goes on from its last checkpoint. It computes the rounds after that again, with the same numbers.
A warm-up that is killed starts again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.channel.sizes import record_bytes, upload_bytes
from fedkeel.core.algorithm import SERVER_HOOKS, Algorithm, Plan, defaults
from fedkeel.core.device import at_border, check_device, check_round, round_on, to_device, to_host, wait_for
from fedkeel.core.flat import FlatModel, set_memory_format
from fedkeel.core.records import OrdinaryOrder, check_finite, check_records, down_record, floats, form, mean_floats
from fedkeel.core.round import Round
from fedkeel.core.steps import Objective
from fedkeel.core.sums import NotASum, SumsOnlyRound, sealed
from fedkeel.data.federation import Federation
from fedkeel.engine import seeding
from fedkeel.engine.attendance import Attendance
from fedkeel.engine.best_round import BestRound
from fedkeel.engine.callbacks import Callback, RoundState, call_all
from fedkeel.engine.client_scores import client_scores, held_out_batches
from fedkeel.engine.client_work import ClientWork, Exchange, PrivateLayers, RecordStack, one_thread
from fedkeel.engine.conditions import open_channel
from fedkeel.engine.evaluation import OutputMetric, batches_of, evaluate
from fedkeel.engine.events import EventQueue, check_asynchronous
from fedkeel.engine.fleet import Fleet
from fedkeel.engine.folding import Answers, Folding
from fedkeel.engine.held_out import HeldOut, hold_out
from fedkeel.engine.loss import loss_name
from fedkeel.engine.own_metrics import OwnMetrics
from fedkeel.engine.result import Clients, Run, model_at
from fedkeel.engine.round_clock import RoundClock
from fedkeel.engine.runners.runner import EngineChoice, Runner
from fedkeel.engine.runners.started_before import Sent, StartedBefore
from fedkeel.engine.schedule import factors
from fedkeel.engine.settings import NEED_UPLOADS, Settings
from fedkeel.engine.state.checkpoint import Checkpoint, Part, check_same, run_identity, save_checkpoint, server_from
from fedkeel.engine.state.directory import RunDirectory
from fedkeel.engine.state.store import open_store
from fedkeel.errors import RoundError, describe

GIVE_UP_AFTER = 10  # clients; a warm-up stops if all of its clients failed so far, and they were at least this many
CHECKPOINT_SHARE = 0.03  # the part of the time that may go into checkpoints
INTERRUPTED = "interrupted"  # why a run ended that Ctrl-C stopped
NO_METRICS = OwnMetrics()


@dataclass
class ExchangeResult:
    """What the loop needs of an exchange after the server's step."""

    r: Round
    up: float  # mean floats that a client sent
    up_bytes: float  # mean bytes of a client's upload as it travels
    loss: float  # weighted mean of the clients' losses
    faults: dict[str, str]  # client -> why it was dropped
    uploads: Any  # record of [S, ...], without the clients that failed; of [0, ...] if nobody kept the uploads
    extra_columns: dict[str, Any]  # further columns for this round's row of the history
    cause: Exception | None  # the first fault, if it happened in this process


class Trainer:
    """One run. `train` makes a Trainer, calls `fit` and returns its result."""

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
        metrics: Sequence[str] = (),
        own_metrics: OwnMetrics = NO_METRICS,
        callbacks: Sequence[Callback] = (),
        returns_partial: bool = False,
    ) -> None:
        """returns_partial: after Ctrl-C, `fit` returns the run so far, if a round is complete."""
        self.whole, self.model, self.settings, self.engine, self.config = fed, model, settings, engine, config
        self.metrics, self.own_metrics, self.callbacks = metrics, own_metrics, callbacks
        self.returns_partial = returns_partial
        self.held = hold_out(fed, settings.validation, settings.seed) if settings.validation else None
        self.fed = fed if self.held is None else self.held.training  # what clients train on
        self.lr_factor = factors(settings.lr_schedule, settings.rounds)
        self.N, self.S = len(fed), settings.largest_cohort(len(fed))
        K, fewest = float(settings.steps_of(self.fed.sizes).mean()), settings.smallest_cohort(self.N)
        self.schedule = settings.schedule(self.fed)
        # Who came is written down if the user chose who is there.
        self.attendance = Attendance(self.N) if settings.participation is not None else None
        self.given = algo  # as the user gave it; `plan` fills in what follows from N, S, K and T
        self.algo = algo.plan(Plan(N=self.N, S=self.S, K=K, T=settings.rounds, fewest=fewest, layers=model.layers))
        settings.check_decay(self.algo)
        self.channel = open_channel(settings, self.algo, model, self.schedule)
        if self.channel is not None:
            self.fed = self.channel.attacked(self.fed)
        self.ids: list[int] = []  # the clients of the present round
        self._set_clock(settings)
        self.work = ClientWork(self.algo, self.fed, objective, settings.seed, settings.batch, settings.lr_decay)
        self.objective, self.buffers = objective, model.read_buffers()
        self.history: list[dict[str, Any]] = []
        self.best: BestRound | None = None
        self.stopped = ""  # why the run ended before its last round
        self.t = 0  # the next round
        self.warmed_up = not self.algo.warms_up()  # no warm-up is left to do
        self.warmup_columns: dict[str, Any] = {}  # of round 0: what the warm-up cost a client, and who failed
        check_records(self.algo, model.layers)
        self.server, initial = self.algo.init(model.vector())
        if algo.facts.private and initial is not None:
            raise ValueError(
                f"{algo.name}: it is private: its clients keep their layers, so init must not declare a client record"
            )
        check_device("init: server record", self.server, model.device)
        self.initial = to_host(PrivateLayers(self.buffers) if model.private else initial)
        wait_for(model.device)
        self.directory = directory
        self.fingerprint = None if directory is None else fed.fingerprint()
        self.frozen = None if directory is None else model.frozen()
        # The store has room for the clients that can ever take part. Room for all N could exceed the largest file that the
        # system allows, even if most of it is never used.
        most_clients = self.N if self.algo.warms_up() else min(self.N, settings.rounds * self.S)
        path = None if directory is None else directory.store
        self.store = (
            engine.remote.store if engine.remote else open_store(self.initial, most_clients, self.S, path, store == "disk")
        )
        self.folding = Folding(self.work, self.store)
        self.parts: dict[str, Part] = {}  # what a checkpoint keeps beside server, buffers and client memory, by name
        if self.channel is not None:
            self.parts["channel"] = self.channel
        if directory is not None:
            directory.recover(self._restore)
        self._saved, self._seconds_to_write = time.monotonic(), 0.0

    def _set_clock(self, settings: Settings) -> None:
        """Virtual time and, for asynchronous runs, the event queue."""
        self.clock: RoundClock | None = None
        self.queue: EventQueue | None = None
        self.sent: dict[int, Sent] = {}  # version of the model -> what clients received that have started from it
        self.version: dict[int, int] = {}  # clients of the present round -> the version from which they started
        self.conditions = settings.conditions()
        pace = None
        if settings.clock is not None:
            from fedkeel.channel.sizes import NO_LINKS
            from fedkeel.engine.pace import Pace

            fleet, links = Fleet(settings.clock), self.channel.what.links if self.channel is not None else NO_LINKS
            pace = Pace(fleet, settings.seed, self.algo, self.model, self.fed, settings.batch, links)
        began = 0.0
        if pace is not None and self.algo.warms_up():
            steps = settings.steps_of(self.fed.sizes).tolist()
            everybody = Exchange("warmup", -1, list(range(self.N)), steps, {}, None, self.model.read_buffers())
            began = float(pace.seconds(everybody, "warmup").max())  # all clients warm up at the same time
        if settings.buffer is not None:
            check_asynchronous(self.algo, self.model.layers)
            at_once = settings.concurrency or settings.cohort_size(self.N)
            plan = partial(self._plan_exchange, "client")
            seconds = partial(pace.seconds, stage="client") if pace is not None else lambda e: np.zeros(len(e.ids))
            self.queue = EventQueue(settings.buffer, at_once, self.schedule, plan, seconds, began)
        elif pace is not None:
            self.clock = RoundClock(pace, settings.deadline)
            self.clock.now = began

    # The loop -----------------------------------------------------------------------------------------------------

    def fit(self, report: Callable[[dict[str, Any]], None]) -> Run:
        if self.directory is not None:
            self.directory.begin(self.config, self.history, self.fed.schema)
        for row in self.history:
            report(row)
        before: Any = (self.server, self.buffers)
        with one_thread(*self.engine.devices, self.model.device), contextlib.ExitStack() as stack:
            if self._goes_on():
                # Not run as a round: the engine measures with it and reads its shapes.
                example = self._plan_exchange("client", self.t, self.schedule.participants(self.t)[: self.S] or [0])
                left = self.settings.rounds - self.t
                runner: Runner = self.engine.start(self.work, self.store, self.initial, example, self.S, left)
                stack.callback(runner.close)
                if self.queue is not None:
                    runner = StartedBefore(runner, self.sent, self.version)
                self._checkpoint(due=True)  # from here on the run can be resumed; also measures what a checkpoint costs
                if not self.warmed_up:
                    self._warm_up(runner)
                try:
                    while self._goes_on():
                        before = (self.server, self.buffers)
                        report(self._round(runner))
                except KeyboardInterrupt:
                    if not self.returns_partial or not self.t:
                        raise
                    if len(self.history) == self.t:  # `report` was interrupted: the round is complete
                        before = (self.server, self.buffers)
                    (self.server, self.buffers), self.history = before, self.history[: self.t]
                    self.stopped = INTERRUPTED
            return self._result()

    def _goes_on(self) -> bool:
        return self.t < self.settings.rounds and not self.stopped and not self._budget_spent()

    def _budget_spent(self) -> bool:
        """Would the next round spend more privacy than the run may?"""
        channel = self.channel
        return channel is not None and channel.spent_after(self.t, self.schedule.participants(self.t))

    def _round(self, runner: Runner) -> dict[str, Any]:
        start, t = time.perf_counter(), self.t
        exchange, columns = self._selected(t) if self.queue is None else self._arrived(self.queue, t)
        self.ids = exchange.ids
        if not self.ids:
            return self._end_round(start, self._empty_row(t) | columns)
        expected, up, up_bytes, faults, survey_loss = len(self.ids), 0.0, 0.0, {}, math.nan
        if self.algo.surveys(t):
            survey = self._exchange(runner, dataclasses.replace(exchange, stage="survey"))
            up, up_bytes, faults, survey_loss = survey.up, survey.up_bytes, survey.faults, survey.loss
            # What the server sends has changed. The clients keep the roles that they had in the survey.
            exchange = dataclasses.replace(exchange, **self._now()._asdict())
            exchange = exchange.only([position for position, i in enumerate(self.ids) if str(i) not in faults])
        old = self.server
        result = self._exchange(runner, exchange)
        row = {
            "round": t,
            "train_loss": survey_loss if math.isnan(result.loss) else result.loss,  # FedAWE trains in the survey
            "up": up + result.up,
            "down": floats(exchange.down),
            "up_bytes": up_bytes + result.up_bytes,
            "down_bytes": record_bytes(exchange.down, self.channel.what.downlink if self.channel is not None else None),
            "clients": result.r.S,
            "dropped": expected - result.r.S,
            "faults": faults | result.faults,
        }
        try:
            row |= self.channel.columns() if self.channel is not None else {}
            row |= result.extra_columns | columns | self._evaluation(t) | (self.warmup_columns if t == 0 else {})
            if self.metrics and self._evaluates(t):
                row |= self._measured(old, result)
            row |= self._own_evaluation(t, row)
        except Exception as error:
            raise RoundError(self.algo.name, t, None, "evaluate", describe(error)) from error
        if self.attendance is not None:
            row |= self.attendance.add(t, result.r.ids.tolist())
        return self._end_round(start, row)

    def _selected(self, t: int) -> tuple[Exchange, dict[str, Any]]:
        """The clients of a round that are in time, and columns of the history about virtual time."""
        if self.clock is None:
            return self._plan_exchange("client", t, self.schedule.participants(t)), {}
        self.clock.now = now = self.schedule.somebody_from(self.clock.now)
        ids, wanted = self.schedule.participants(t, now), self.N
        if self.settings.overselect > 1:
            wanted = self.schedule.S
            ids = self.schedule.draw(t, min(self.N, math.ceil(self.settings.overselect * wanted)), now)
        exchange = self._plan_exchange("client", t, ids)
        if not ids:
            return exchange, {"clock_seconds": now, "late": 0, "timeline": []}
        in_time, columns = self.clock.round(exchange, self.algo.surveys(t), wanted)
        return exchange.only(in_time), columns

    def _arrived(self, queue: EventQueue, t: int) -> tuple[Exchange, dict[str, Any]]:
        """The clients whose uploads the server uses in its step t of an asynchronous run, and columns of the history."""
        self.sent[t] = self._now()
        starts = queue.step()
        for version in self.sent.keys() - queue.needed() - {start.version for start in starts}:
            del self.sent[version]
        self.version.clear()
        self.version.update({start.client: start.version for start in starts})
        names = starts[0].roles if starts else ()
        drawn = {name: np.array([start.roles[name] for start in starts]) for name in names}
        K, delays = [start.K for start in starts], [t - start.version for start in starts]
        exchange = Exchange(
            "client",
            t,
            [start.client for start in starts],
            K,
            drawn,
            *self.sent.get(t, self._now()),
            lr_factor=self.lr_factor(t),
        )
        columns: dict[str, Any] = {"staleness": sum(delays) / max(1, len(delays)), "most_stale": max(delays, default=0)}
        if self.settings.clock is not None:
            work = [[start.client, start.begins, start.ends, True] for start in starts]
            columns |= {"clock_seconds": queue.now, "timeline": work}
        return exchange, columns

    def _now(self) -> Sent:
        """What the server would send now."""
        down = down_record(self.algo, self.server)
        if self.channel is not None and self.channel.what.downlink is not None:
            down = self.channel.what.downlink.record(down)
        return Sent(down, self.buffers)

    def _empty_row(self, t: int) -> dict[str, Any]:
        """The row of a round to which nobody came: it changes nothing and costs nothing."""
        row: dict[str, Any] = {"round": t, "train_loss": math.nan, "up": 0.0, "down": 0, "clients": 0, "dropped": 0}
        row |= {"up_bytes": 0.0, "down_bytes": 0}
        if self.channel is not None:
            self.channel.count("client", t, [])
            row |= self.channel.columns()
        row |= {"faults": {}} | self._evaluation(t) | (self.warmup_columns if t == 0 else {})
        row |= self._own_evaluation(t, row)
        return row | (self.attendance.add(t, []) if self.attendance is not None else {})

    def _end_round(self, start: float, row: dict[str, Any]) -> dict[str, Any]:
        """Writes down the row of a round that began at `start`."""
        row["seconds"] = time.perf_counter() - start
        self.history.append(row)
        if self.callbacks:
            state = RoundState(self.history, self._evaluates(self.t), self._run)
            with torch.enable_grad():
                self.stopped = call_all(self.callbacks, row, state)
        self.t += 1
        if self.directory is not None:
            self.directory.history.add(row)
        self._checkpoint(due=not self._goes_on() or self.engine.remote is not None)
        return row

    def _exchange(self, runner: Runner, exchange: Exchange, last: bool = True) -> ExchangeResult:
        """Runs the clients, then the server's step with their uploads, then commits the clients' new records."""
        hook, planned = SERVER_HOOKS[exchange.stage], exchange
        keep = self.channel is not None or (bool(NEED_UPLOADS & set(self.metrics)) and self._evaluates(exchange.t))
        # `_warm_up` counts the faults of all its exchanges together.
        least = 0 if exchange.stage == "warmup" else min(self.settings.min_clients, len(exchange.ids))
        answers = self.folding.run(runner, exchange, self._round_facts, keep, least)
        exchange, uploads = answers.exchange, answers.uploads
        if least:
            self._check_enough(planned, answers)
        kept = [position for position in range(len(exchange.ids)) if position not in uploads.faults]
        r = facts = self._round_facts(exchange, kept, last)
        up, buffers, losses = uploads.up, uploads.buffers, uploads.losses
        summed = uploads.totals if kept else None
        if summed is not None:
            up = summed.like
        elif up is None:  # all clients failed, which a warm-up may survive
            up = RecordStack(self.work.upload_templates()[exchange.stage], S=0).record
        if uploads.faults:
            up, buffers, losses = type(up)(*(z[kept] for z in up)), buffers[kept], losses[kept]
        device = self.model.device
        up, buffers = at_border("upload", up, device), to_device(buffers, self.buffers.device)
        check_round(r, device)
        given, received = up, None
        mean: Callable[[Tensor], Tensor] = _with_sum_one(r).avg
        if self.channel is not None:
            received = self.channel.receive(exchange.stage, planned.ids, up, r)
            given, facts, mean = received.given, received.facts, received.mean or mean
        elif summed is not None:
            take = summed.take
            given, facts = sealed(up), SumsOnlyRound(**vars(r), total=lambda wanted: to_device(take(wanted), device))
        try:
            new = getattr(self.work.method_at(exchange.t, exchange.lr_factor), hook)(self.server, given, facts)
            check_device("new server record", new, device)
            if form(new) != form(self.server):
                raise ValueError(f"the server record has another form than before: {form(new)}, not {form(self.server)}")
            # Fields that the hook changes in place (facts.owns) are too large to check in every round. Their rows were
            # checked as uploads.
            check_finite(new, without=self.algo.facts.owns)
            self.server = new
        except NotASum as error:  # the trial has missed something: from now on, keep the uploads of this exchange
            if received is not None:  # single uploads must not pass the channel
                raise RoundError(self.algo.name, exchange.t, None, hook, describe(error)) from error
            self.folding.asked[exchange.stage] = None
            self.folding.discard(uploads)
            return self._exchange(runner, planned, last)
        except Exception as error:
            raise RoundError(self.algo.name, exchange.t, None, hook, describe(error)) from error
        trained = exchange.stage != "warmup" and not bool(losses.isnan().any())  # a survey need not make local steps
        if self.model.has_buffers and trained:
            self.buffers = mean(buffers)
        for position, slot in uploads.slots.items():
            if position in uploads.faults:
                self.store.discard(slot)
            else:
                self.store.commit(exchange.ids[position], slot)
        if received is not None and self.channel is not None:
            self.channel.commit(exchange.stage, exchange.t, planned.ids, received)
        # Exact; a dot product may round differently for another alignment.
        loss = math.fsum((_with_sum_one(r).p.cpu() * losses).tolist())
        uplink = self.channel.what.uplink if self.channel is not None and exchange.stage != "warmup" else None
        up_bytes = upload_bytes(self.algo, up, r, uplink)
        return ExchangeResult(
            r, mean_floats(self.algo, up, r), up_bytes, loss, answers.faults, up, uploads.extra_columns, answers.cause
        )

    def _check_enough(self, exchange: Exchange, answers: Answers) -> None:
        """Stops the run if too few clients answered. It resumes from the start of this round, or from the last checkpoint if
        the round had a survey."""
        if error := self._too_few(exchange.stage, exchange.t, len(exchange.ids), answers.faults):
            self.folding.discard(answers.uploads)
            # After a survey the server record is no longer that of the start of the round. A checkpoint here would make a
            # resumed run use the survey twice.
            if exchange.stage != "client" or not self.algo.surveys(exchange.t):
                self._checkpoint(due=True)
            raise error from answers.cause

    def _too_few(self, stage: str, t: int, clients: int, faults: dict[str, str]) -> RoundError | None:
        """The error to raise if too few of this number of clients answered."""
        least, answered = min(self.settings.min_clients, clients), clients - len(faults)
        if answered >= least:
            return None
        client, why = next(iter(faults.items()))
        reason = f"{answered} of {clients} clients answered, min_clients is {least}; {why}"
        return RoundError(self.algo.name, t, int(client), stage, reason)

    def _plan_exchange(self, stage: str, t: int, ids: list[int], turn: int = 0) -> Exchange:
        """Draws the clients' roles and numbers of steps, and takes what the server sends.

        turn: counts the groups of clients that start from the same model, in asynchronous runs.
        """
        if not ids:
            return Exchange(stage, t, [], [], {}, *self._now())
        drawn = self.algo.draw(seeding.generator(self.settings.seed, seeding.ROLES, t, turn), ids)
        for name, z in drawn.items():
            if not isinstance(z, np.ndarray) or z.shape != (len(ids),):
                raise ValueError(f"{self.algo.name}: draw returns {name} = {z!r}; it must be an array of {len(ids)} numbers")
        K = drawn.pop("K").tolist() if "K" in drawn else self.settings.steps_of(self.fed.sizes[ids]).tolist()
        if not all(isinstance(k, int) and k >= 1 for k in K):
            raise ValueError(f"{self.algo.name}: draw returns K = {K}; it must be whole numbers >= 1")
        return Exchange(stage, t, ids, K, drawn, *self._now(), lr_factor=self.lr_factor(max(t, 0)))

    def _round_facts(self, exchange: Exchange, kept: list[int], last: bool) -> Round:
        """What the server's step may know of the exchange. kept: positions of the clients that answered.  last: False
        while the warm-up still has clients to visit; True in all other exchanges."""
        ids = np.array(exchange.ids)[kept]
        samples = torch.from_numpy(self.fed.sizes[ids]).double()
        uniform = self.settings.weights == "uniform"
        p = torch.ones_like(samples) / len(ids) if uniform else samples / samples.sum()
        weight = torch.full_like(samples, 1 / self.N) if uniform else samples / float(self.fed.offsets[-1])
        if self.schedule.probabilities is not None and exchange.stage != "warmup":
            p = weight / torch.from_numpy(self.schedule.probabilities[ids])
        stale = [exchange.t - self.version.get(i, exchange.t) for i in ids.tolist()]
        if any(stale) and exchange.stage == "client":
            p = p * torch.tensor([self.settings.freshness(tau) for tau in stale], dtype=torch.float64)
        facts = Round(
            t=exchange.t,
            N=self.N,
            ids=torch.from_numpy(ids),
            K=torch.tensor(exchange.K, dtype=torch.float64)[kept],
            p=p,
            weight=weight,
            drawn=SimpleNamespace(**{name: torch.from_numpy(z).double()[kept] for name, z in exchange.drawn.items()}),
            last=last,
            delay=torch.tensor(stale, dtype=torch.float64),
        )
        return round_on(facts, self.model.device)

    def _warm_up(self, runner: Runner) -> None:
        """Runs all clients once, S at a time. A client that fails keeps its initial record; the row of round 0 names it."""
        faults: dict[str, str] = {}
        cause: Exception | None = None
        for start in range(0, self.N, self.S):
            stop = min(start + self.S, self.N)
            exchange = self._plan_exchange("warmup", -1, list(range(start, stop)))
            result = self._exchange(runner, exchange, last=stop == self.N)
            faults, cause = faults | result.faults, cause or result.cause
            all_failed = len(faults) == stop >= GIVE_UP_AFTER
            # Stop early in two cases: min_clients can no longer be reached, or all clients failed so far.
            if error := self._too_few("warmup", -1, stop if all_failed else self.N, faults):
                raise error from cause
        self.warmup_columns = {"warmup_up": result.up, "warmup_down": floats(exchange.down), "warmup_faults": faults}
        self.warmup_columns |= {"warmup_up_bytes": result.up_bytes, "warmup_down_bytes": record_bytes(exchange.down)}
        self.warmed_up = True
        self._checkpoint(due=True)

    def _evaluates(self, t: int) -> bool:
        """Does round t end with an evaluation?"""
        every, last = self.settings.evaluate_every, t == self.settings.rounds - 1
        return last or bool(every and (t + 1) % every == 0)

    def _measured(self, old: Any, result: ExchangeResult) -> dict[str, float]:
        """The measurements of `metrics`. old: the server record before the round."""
        from fedkeel.engine.metrics import MetricInputs, measure

        sizes = self.fed.sizes.astype(float)
        weights = sizes / sizes.sum() if self.settings.weights == "samples" else np.full(self.N, 1 / self.N)
        return measure(
            self.metrics,
            MetricInputs(self.work, old.x, old, self.server, result.uploads, result.r, self.store, self.buffers, weights),
        )

    def _evaluation(self, t: int) -> dict[str, Any]:
        if self.fed.test is None or not self._evaluates(t):
            return {"test_accuracy": None, "test_loss": None}
        row = self._tested(self.fed.test, self.buffers, self.own_metrics.outputs)
        if self.model.private:  # each client has its own layers: also the mean accuracy over those that took part
            layers = [to_device(self.store.read(i).values, self.model.device) for i in self.ids if i in self.store]
            rows = [self._tested(self.fed.test, values) for values in layers]
            if rows:  # clients on other machines do not send their layers
                row["client_accuracy"] = sum(z["test_accuracy"] or 0.0 for z in rows) / len(rows)
        return row

    def _tested(self, data: tuple[Tensor, Tensor], buffers: Tensor, metrics: Sequence[OutputMetric] = ()) -> dict[str, Any]:
        batches = batches_of(self.model, data, self.fed.prepare)
        found = evaluate(self.objective, self.server.x, buffers, batches, metrics)
        return {f"test_{name}": value for name, value in found.items()}

    def _own_evaluation(self, t: int, row: dict[str, Any]) -> dict[str, Any]:
        """The scores on the validation data, and what the user's functions measure."""
        found = {} if self.held is None else self._validation(t, self.held)
        if self.own_metrics.functions and self._evaluates(t):
            self.model.bind(self.server.x)
            if self.model.has_buffers:
                self.model.write_buffers(self.buffers)
            found |= self.own_metrics.of_model(self.model, self.whole, row | found)
        return found

    def _validation(self, t: int, held: HeldOut) -> dict[str, Any]:
        """The scores on all held-out samples, and those of single clients if the run evaluates them."""
        if not self._evaluates(t):
            return {"val_accuracy": None, "val_loss": None}
        at = (self.server.x, self.buffers)
        single = self.settings.evaluate_on == "clients"
        columns: dict[str, Any] = {}
        if self.engine.remote is not None:
            found, columns = self.engine.remote.validate(t, *at, self.lr_factor(t), single)
        else:
            found = evaluate(self.objective, *at, held_out_batches(self.work, held.rows), self.own_metrics.outputs)
            if single:
                columns = client_scores(self.work, held, *at, self.store, t, self.lr_factor(t))
        if self.best is None or self.best.is_worse_than(found):
            self.best = BestRound(t, found["accuracy"], found["loss"], self.server.x.clone(), self.buffers.clone())
        return {f"val_{name}": value for name, value in found.items()} | columns

    # State on disk ------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        parts = (self.settings, self.algo, self.model, self.initial, self.t)
        conditions = {
            "participation": self.schedule.identity,
            "loss": loss_name(self.objective.step or self.objective.loss),
        } | self.conditions
        return run_identity(*parts, data=self.fingerprint, frozen=self.frozen, conditions=conditions)

    def _checkpoint(self, due: bool) -> None:
        """Writes a checkpoint if it is due, or if writing it takes less than CHECKPOINT_SHARE of the time since the
        last one."""
        if self.directory is None or not self.warmed_up:
            return
        now = time.monotonic()
        if not due and now - self._saved < self._seconds_to_write / CHECKPOINT_SHARE:
            return
        facts: dict[str, Any] = {"identity": self._identity(), "engine": self.engine.name, "why": self.engine.why}
        facts |= {"warmup": self.warmup_columns, "extent": self.directory.history.sync()}
        facts |= {"stopped": self.stopped, "rounds": self.settings.rounds, "clients": self.N}
        tensors = {"buffers": self.buffers, **self.store.index()}
        if self.best is not None:
            facts["best"], tensors = self.best.scores(), tensors | self.best.tensors()
        for version, sent in self.sent.items():
            tensors |= {f"sent.{version}.{name}": z for name, z in sent.down._asdict().items()}
            tensors[f"sent.{version}"] = sent.buffers
        paths = self.directory.checkpoint, self.directory.previous
        save_checkpoint(*paths, self.t, self.server, tensors, facts, self.parts)
        self.store.pin()  # only now may slots be overwritten that only the older checkpoints need
        self._saved = time.monotonic()
        self._seconds_to_write = self._saved - now

    def _restore(self, saved: Checkpoint, history: list[dict[str, Any]]) -> None:
        """Goes back to the state of a checkpoint, after a check that it belongs to this run."""
        self.t, tensors, facts, self.history = saved.t, saved.tensors, saved.facts, history
        then = facts["identity"]
        if then["data"] != self.fingerprint and self.fed.had_fingerprint(then["data"]):
            then["data"] = self.fingerprint
        left_to_method = [name for name, value in dataclasses.asdict(self.given).items() if value is None]  # type: ignore[call-overload]
        # A checkpoint of an older version may lack hyper-parameters that the method has now: they had their defaults.
        check_same(then | {"algorithm": defaults(type(self.algo)) | then["algorithm"]}, self._identity(), left_to_method)
        if self.t > self.settings.rounds:
            raise ValueError(f"resume: the checkpoint is at round {self.t}, beyond rounds = {self.settings.rounds}")
        self.server = server_from(tensors, self.server, self.model.device)
        self.buffers = to_device(tensors["buffers"], self.buffers.device)
        self.store.restore(tensors)  # raises if a record is damaged; then this is called again with an older checkpoint
        if self.attendance is not None:
            self.attendance.replay(self.history)
        for name, part in self.parts.items():
            if name in saved.parts:
                part.restore(saved.parts[name])
        self.warmed_up, self.warmup_columns = True, facts["warmup"]
        if facts.get("rounds") == self.settings.rounds:  # with more rounds, a run that was stopped goes on
            self.stopped = facts["stopped"]
        if "best" in facts:
            self.best = BestRound.restored(facts["best"], tensors, self.model.device)
        self._restore_time(tensors)
        if self.engine.name == "auto":
            self.engine.name, self.engine.why = facts["engine"], facts["why"]

    def _restore_time(self, tensors: dict[str, Tensor]) -> None:
        """Sets clock and event queue to the moment of the checkpoint."""
        if self.clock is not None and self.history:
            self.clock.now = self.history[-1]["clock_seconds"]
        if self.queue is None:
            return
        for _ in range(self.t):
            self.queue.step()
        template = self._now().down
        for version in self.queue.needed():
            values = (tensors[f"sent.{version}.{name}"].to(self.model.device, copy=True) for name in template._fields)
            self.sent[version] = Sent(type(template)(*values), to_device(tensors[f"sent.{version}"], self.buffers.device))

    def _result(self) -> Run:
        """The result in memory, and in the directory of the run if there is one."""
        run = self._run()
        if self.directory is not None and self.stopped != INTERRUPTED:
            self.directory.end(run, self.fingerprint)
        return run

    def _run(self) -> Run:
        """The run so far."""
        ordinary = OrdinaryOrder(self.algo, self.model.layers)
        server = ordinary(self.server)
        module = self.model.copy()
        set_memory_format(module, "contiguous")
        for p, original in zip(module.parameters(), self.model.module.parameters(), strict=True):
            p.requires_grad_(original.requires_grad)
        clients = Clients(self.store, self.N, self.model.device, ordinary)
        return Run(
            params=server.x.clone(),
            model=model_at(module, self.algo.facts.private, server.x, self.buffers),
            server=server,
            clients=clients,
            history=self.history,
            algorithm=self.algo,
            engine=self.engine.name,
            why=self.engine.why,
            out=None if self.directory is None else self.directory.path,
            stopped=self.stopped,
            config=self.config,
            best_at=self.best and self.best.in_order(self.model.layers),
        )


def _with_sum_one(r: Round) -> Round:
    """The round with weights that add up to 1, for means of things that are no displacements. Corrected weights add up to 1
    only in the mean over many rounds."""
    total = float(r.p.sum())
    return r if abs(total - 1) < 1e-9 or not len(r.p) else dataclasses.replace(r, p=r.p / total)
