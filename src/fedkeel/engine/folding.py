"""Runs the clients of an exchange so that their uploads need not be kept, if the server step needs nothing but sums.

If the uploads of an exchange would take much memory, the runner adds them up as they come. The clients' weights depend on
who answers, and the runner assumes that all do. If a client fails, the sums are wrong, and the others run again without it.
That is possible because a client's result follows from (seed, round, client) and its record, and records change only after
the exchange has succeeded. So the bits are those of an exchange that keeps all uploads.

A client that failed is a suspect. When it takes part again, it runs before the others, and if it fails again, the others run
without it. So a client that always fails costs no more than it would if uploads were kept. If other clients fail again and
again, the run keeps all uploads from then on, because running everything twice would cost more than memory does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fedkeel.core.round import Round
from fedkeel.core.sums import Sum, sums_asked
from fedkeel.engine import totals
from fedkeel.engine.client_work import ClientWork, Exchange, Uploads
from fedkeel.engine.runners.runner import Answers, Runner
from fedkeel.engine.totals import SumPlan

Facts = Callable[[Exchange, list[int], bool], Round]
REPEATS = 3  # times that clients run again; after that, the run keeps all uploads


class Folding:
    """Runs the exchanges of a run."""

    def __init__(self, work: ClientWork, store: Any) -> None:
        self.work, self.store = work, store
        self.upload_bytes = {stage: sum(z.nbytes for z in up) for stage, up in work.upload_templates().items()}
        # exchange -> the sums that its server step needs; None: it needs single uploads
        self.asked: dict[str, Counter[Sum] | None] = {}
        self.suspects: set[int] = set()  # clients that failed when they took part last
        self.repeats = 0

    def run(self, runner: Runner, exchange: Exchange, facts: Facts, keep: bool, least: int) -> Answers:
        """facts: the round as the server sees it, from (exchange, positions of the clients that answered, last).
        keep: the uploads are needed one by one.  least: with fewer answers than this, the exchange does not count."""
        stage = exchange.stage
        small = self.upload_bytes[stage] * len(exchange.ids) <= totals.KEEP
        if keep or small or self.repeats >= REPEATS or self._sums(stage) is None:
            return Answers.of(exchange, runner.run(exchange))
        faults, cause = self._faults_of_suspects(runner, exchange, facts)
        left = _without(exchange, faults)
        while True:
            uploads = runner.run(self._folded(left, facts)) if left.ids else _nothing(left)
            new = Answers.of(left, uploads).faults
            faults, cause = faults | new, cause or uploads.cause
            if not new or uploads.totals is None or len(new) == len(left.ids) or len(exchange.ids) - len(faults) < least:
                ordered = {str(client): faults[str(client)] for client in exchange.ids if str(client) in faults}
                return Answers(left, uploads, ordered, cause)
            self._discard(uploads)
            self.suspects |= set(map(int, new))
            self.repeats += 1
            left = _without(left, new)

    def _sums(self, stage: str) -> Counter[Sum] | None:
        algo = self.work.algo
        if stage not in self.asked:
            # A step that has changed its own fields in place could not be tried again with all uploads.
            needs_rows = bool(algo.facts.owns)
            self.asked[stage] = None if needs_rows else sums_asked(algo, stage, self.work.objective.model.layers)
        return self.asked[stage]

    def keep_uploads(self, stage: str) -> None:
        """From now on, keeps the uploads of this exchange."""
        self.asked[stage] = None

    def _discard(self, uploads: Uploads) -> None:
        """Frees the slots of an attempt that does not count."""
        for slot in uploads.slots.values():
            self.store.discard(slot)

    def _faults_of_suspects(
        self, runner: Runner, exchange: Exchange, facts: Facts
    ) -> tuple[dict[str, str], Exception | None]:
        """Runs only the clients that are suspects. A suspect that answers is cleared."""
        suspects = exchange.only([position for position, client in enumerate(exchange.ids) if client in self.suspects])
        if not suspects.ids:
            return {}, None
        uploads = runner.run(self._folded(suspects, facts))
        self._discard(uploads)
        faults = Answers.of(suspects, uploads).faults
        self.suspects -= {client for client in suspects.ids if str(client) not in faults}
        return faults, uploads.cause

    def _folded(self, exchange: Exchange, facts: Facts) -> Exchange:
        """The exchange with the weights that its clients have if all of them answer."""
        r, asked = facts(exchange, list(range(len(exchange.ids))), True), self._sums(exchange.stage)
        assert asked is not None
        exchange.sums = SumPlan(asked, {"avg": r.p.tolist(), "share": r.weight.tolist()})
        return exchange


def _without(exchange: Exchange, faults: Iterable[str]) -> Exchange:
    failed = set(map(int, faults))
    return exchange.only([position for position, client in enumerate(exchange.ids) if client not in failed])


def _nothing(exchange: Exchange) -> Uploads:
    return Uploads(None, exchange.buffers.new_zeros(0, len(exchange.buffers)), torch.zeros(0).double(), {}, {})
