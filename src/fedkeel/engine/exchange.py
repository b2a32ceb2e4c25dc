"""One exchange of a run: the clients get the server's record and work, the server makes its step with their uploads.

`Exchanges.run` is the exchange. What a run does not use is None here: channel (privacy, compression, robust means, attacks),
time (virtual seconds, asynchronous rounds), schedule (clients that come and go), folding (sums instead of uploads).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.algorithm import SERVER_HOOKS
from fedkeel.core.device import check_round, round_on, to_device
from fedkeel.core.records import check_finite, down_record, form, mean_bytes, mean_floats
from fedkeel.core.round import Round
from fedkeel.core.sums import NotASum, SumsOnlyRound, sealed
from fedkeel.engine import seeding, totals
from fedkeel.engine.client_work import ClientWork, Exchange, RecordStack
from fedkeel.engine.runners.runner import Answers, Runner
from fedkeel.engine.settings import NEED_UPLOADS, Settings
from fedkeel.engine.state.checkpoint import RunState
from fedkeel.errors import RoundError, describe

if TYPE_CHECKING:
    from fedkeel.channel.channel import Channel, Received
    from fedkeel.engine.folding import Folding
    from fedkeel.engine.participation import Schedule
    from fedkeel.engine.virtual_time import VirtualTime


class TooFewAnswers(RoundError):
    """Fewer clients answered than `min_clients`. The server's record is what it was before the exchange."""


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


class Exchanges:
    """All exchanges of a run."""

    def __init__(
        self,
        work: ClientWork,
        settings: Settings,
        state: RunState,
        store: Any,
        schedule: Schedule | None,
        channel: Channel | None,
    ) -> None:
        """schedule: None if every round has S clients that are drawn from all."""
        self.work, self.settings, self.state, self.store = work, settings, state, store
        self.algo, self.model, self.fed = work.algo, work.objective.model, work.fed
        self.N, self.S = len(work.fed), settings.largest_cohort(len(work.fed))
        self.schedule, self.channel = schedule, channel
        self.lr_schedule: Callable[[int], float] | None = None
        if settings.lr_schedule is not None:
            from fedkeel.engine.schedule import factors

            self.lr_schedule = factors(settings.lr_schedule, settings.rounds)
        self.time: VirtualTime | None = None
        if settings.has_virtual_time:
            from fedkeel.engine.virtual_time import VirtualTime

            assert schedule is not None
            links = None if channel is None else channel.what.links
            self.time = VirtualTime(settings, self.algo, self.model, self.fed, schedule, self.plan, links)
        self.folding: Folding | None = None
        largest: int = max(sum(z.nbytes for z in up) for up in work.upload_templates().values())
        if largest * self.S > totals.KEEP:
            from fedkeel.engine.folding import Folding

            self.folding = Folding(work, store)

    # Before -------------------------------------------------------------------------------------------------------

    def participants(self, t: int) -> list[int]:
        """The clients of round t, in increasing order."""
        if self.schedule is None:
            return seeding.sample(self.settings.seed, t, self.N, self.S)
        return self.schedule.participants(t)

    def select(self, t: int) -> tuple[Exchange, dict[str, Any]]:
        """The main exchange of round t, and columns of the history about virtual time."""
        if self.time is None:
            return self.plan("client", t, self.participants(t)), {}
        return self.time.select(t, self.sent(), self.lr_factor(t))

    def plan(self, stage: str, t: int, ids: list[int], turn: int = 0) -> Exchange:
        """Draws the clients' roles and numbers of steps, and takes what the server sends.

        turn: counts the groups of clients that start from the same model, in asynchronous runs.
        """
        if not ids:
            return Exchange(stage, t, [], [], {}, *self.sent())
        drawn = self.algo.draw(seeding.generator(self.settings.seed, seeding.ROLES, t, turn), ids)
        for name, z in drawn.items():
            if not isinstance(z, np.ndarray) or z.shape != (len(ids),):
                raise ValueError(f"{self.algo.name}: draw returns {name} = {z!r}; it must be an array of {len(ids)} numbers")
        K = drawn.pop("K").tolist() if "K" in drawn else self.settings.steps_of(self.fed.sizes[ids]).tolist()
        if not all(isinstance(k, int) and k >= 1 for k in K):
            raise ValueError(f"{self.algo.name}: draw returns K = {K}; it must be whole numbers >= 1")
        return Exchange(stage, t, ids, K, drawn, *self.sent(), lr_factor=self.lr_factor(max(t, 0)))

    def sent(self) -> tuple[Any, Tensor]:
        """What the server sends now: its record, and the model's buffers."""
        down = down_record(self.algo, self.state.server)
        return down if self.channel is None else self.channel.sent(down), self.state.buffers

    def down_bytes(self, down: Any) -> int:
        """The bytes of what the server sends, as it travels."""
        return sum(z.nbytes for z in down) if self.channel is None else self.channel.down_bytes(down)

    def lr_factor(self, t: int) -> float:
        """The factor of the learning rate in round t, by the schedule of the run."""
        return 1.0 if self.lr_schedule is None else self.lr_schedule(t)

    # The exchange -------------------------------------------------------------------------------------------------

    def run(self, runner: Runner, exchange: Exchange, last: bool = True) -> ExchangeResult:
        """Runs the clients, then the server's step with their uploads, then commits the clients' new records.

        last: False while the warm-up still has clients to visit; True in all other exchanges.
        """
        planned, answers = exchange, self._answers(runner, exchange)
        exchange, uploads = answers.exchange, answers.uploads
        kept = [position for position in range(len(exchange.ids)) if position not in uploads.faults]
        r = facts = self._facts(exchange, kept, last)
        up, buffers, losses = self._without_faults(answers, kept)
        given = up
        mean: Callable[[Tensor], Tensor] = with_sum_one(r).avg
        received: Received | None = None
        if self.channel is not None:
            received = self.channel.receive(exchange.stage, planned.ids, up, r)
            given, facts, mean = received.given, received.facts, received.mean or mean
        elif kept and uploads.totals is not None:
            take, device = uploads.totals.take, self.model.device
            given, facts = sealed(up), SumsOnlyRound(**vars(r), total=lambda wanted: to_device(take(wanted), device))
        try:
            self.state.server = self._server_step(exchange, given, facts)
        except NotASum as error:
            if self.folding is None or received is not None:  # single uploads must not pass the channel
                hook = SERVER_HOOKS[exchange.stage]
                raise RoundError(self.algo.name, exchange.t, None, hook, describe(error)) from error
            self.folding.keep_uploads(exchange.stage)  # the trial has missed something
            self._discard(answers)
            return self.run(runner, planned, last)
        trained = exchange.stage != "warmup" and not bool(losses.isnan().any())  # a survey need not make local steps
        if self.model.has_buffers and trained:
            self.state.buffers = mean(buffers)
        self._commit(answers)
        if self.channel is not None and received is not None:
            self.channel.commit(exchange.stage, exchange.t, planned.ids, received)
        # Exact; a dot product may round differently for another alignment.
        loss = math.fsum((with_sum_one(r).p.cpu() * losses).tolist())
        channel, size = self.channel, mean_floats(self.algo, up, r)
        nbytes = mean_bytes(self.algo, up, r) if channel is None else channel.mean_bytes(exchange.stage, up, r)
        return ExchangeResult(r, size, nbytes, loss, answers.faults, up, uploads.extra_columns, answers.cause)

    def _answers(self, runner: Runner, exchange: Exchange) -> Answers:
        """Runs the clients. Raises if too few of them answer."""
        # The warm-up counts the faults of all its exchanges together.
        least = 0 if exchange.stage == "warmup" else min(self.settings.min_clients, len(exchange.ids))
        if self.folding is None:
            answers = Answers.of(exchange, runner.run(exchange))
        else:
            one_by_one = bool(NEED_UPLOADS & set(self.settings.metrics)) and self.settings.evaluates(exchange.t)
            keep = self.channel is not None or one_by_one
            answers = self.folding.run(runner, exchange, self._facts, keep, least)
        if least and (error := self.too_few(exchange.stage, exchange.t, len(exchange.ids), answers.faults)):
            self._discard(answers)
            raise error from answers.cause
        return answers

    def too_few(self, stage: str, t: int, clients: int, faults: dict[str, str]) -> TooFewAnswers | None:
        """The error to raise if too few of this number of clients answered."""
        least, answered = min(self.settings.min_clients, clients), clients - len(faults)
        if answered >= least:
            return None
        client, why = next(iter(faults.items()))
        reason = f"{answered} of {clients} clients answered, min_clients is {least}; {why}"
        return TooFewAnswers(self.algo.name, t, int(client), stage, reason)

    def _without_faults(self, answers: Answers, kept: list[int]) -> tuple[Any, Tensor, Tensor]:
        """Uploads, buffers and losses of the clients that answered. kept: their positions."""
        uploads = answers.uploads
        up, buffers, losses = uploads.up, uploads.buffers, uploads.losses
        if kept and uploads.totals is not None:
            up = uploads.totals.like
        elif up is None:  # all clients failed, which a warm-up may survive
            up = RecordStack(self.work.upload_templates()[answers.exchange.stage], S=0).record
        if uploads.faults:
            up, buffers, losses = type(up)(*(z[kept] for z in up)), buffers[kept], losses[kept]
        up = self.model.take("upload", up)
        return up, buffers if self.model.on_host else to_device(buffers, self.state.buffers.device), losses

    def _facts(self, exchange: Exchange, kept: list[int], last: bool) -> Round:
        """What the server's step may know of the exchange. kept: positions of the clients that answered."""
        ids = np.array(exchange.ids)[kept]
        samples = torch.from_numpy(self.fed.sizes[ids]).double()
        uniform = self.settings.weights == "uniform"
        p = torch.ones_like(samples) / len(ids) if uniform else samples / samples.sum()
        weight = torch.full_like(samples, 1 / self.N) if uniform else samples / float(self.fed.offsets[-1])
        if self.schedule is not None and self.schedule.probabilities is not None and exchange.stage != "warmup":
            p = weight / torch.from_numpy(self.schedule.probabilities[ids])
        delay = torch.zeros_like(samples)
        if self.time is not None:
            p, delay = self.time.weights(exchange, ids.tolist(), p)
        facts = Round(
            t=exchange.t,
            N=self.N,
            ids=torch.from_numpy(ids),
            K=torch.tensor(exchange.K, dtype=torch.float64)[kept],
            p=p,
            weight=weight,
            drawn=SimpleNamespace(**{name: torch.from_numpy(z).double()[kept] for name, z in exchange.drawn.items()}),
            last=last,
            delay=delay,
        )
        if self.model.on_host:
            return facts
        facts = round_on(facts, self.model.device)
        check_round(facts, self.model.device)
        return facts

    def _server_step(self, exchange: Exchange, given: Any, facts: Round) -> Any:
        """The new server record. given: the uploads."""
        hook, old = SERVER_HOOKS[exchange.stage], self.state.server
        try:
            new = getattr(self.work.method_at(exchange.t, exchange.lr_factor), hook)(old, given, facts)
            self.model.check("new server record", new)
            if form(new) != form(old):
                raise ValueError(f"the server record has another form than before: {form(new)}, not {form(old)}")
            # Fields that the hook changes in place (facts.owns) are too large to check in every round. Their rows were
            # checked as uploads.
            check_finite(new, without=self.algo.facts.owns)
        except NotASum:
            raise
        except Exception as error:
            raise RoundError(self.algo.name, exchange.t, None, hook, describe(error)) from error
        return new

    def _commit(self, answers: Answers) -> None:
        """Replaces the records of the clients that answered by their new ones."""
        uploads, ids = answers.uploads, answers.exchange.ids
        for position, slot in uploads.slots.items():
            if position in uploads.faults:
                self.store.discard(slot)
            else:
                self.store.commit(ids[position], slot)

    def _discard(self, answers: Answers) -> None:
        """Frees the slots of an exchange that does not count."""
        for slot in answers.uploads.slots.values():
            self.store.discard(slot)


def with_sum_one(r: Round) -> Round:
    """The round with weights that add up to 1, for means of losses and buffers. Weights that correct for participation add
    up to 1 only in the mean over many rounds."""
    total = float(r.p.sum())
    return r if abs(total - 1) < 1e-9 or not len(r.p) else dataclasses.replace(r, p=r.p / total)
