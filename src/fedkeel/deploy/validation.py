"""Validation on held-out samples that stay with the clients: they get the model and reply with its scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import Message, MessageType, RecordDict
from torch import Tensor

from fedkeel.core.records import Record
from fedkeel.data.federation import Federation
from fedkeel.deploy.arrays import count_bytes, to_arrays
from fedkeel.deploy.errors import ClientFailed, InvalidMessage
from fedkeel.deploy.messages import FIELDS, NEW, ScoreReply, ScoreRequest
from fedkeel.deploy.polling import send_all
from fedkeel.deploy.prepared_run import PreparedRun
from fedkeel.engine.client_scores import ClientScore, held_out_batches, score_client, score_columns
from fedkeel.engine.client_work import PrivateLayers
from fedkeel.engine.evaluation import evaluate
from fedkeel.engine.held_out import held_out_sizes
from fedkeel.engine.machine import one_thread
from fedkeel.errors import describe

if TYPE_CHECKING:
    from fedkeel.deploy.supernode_runner import SuperNodeRunner

NOTHING = {"accuracy": None, "loss": math.nan}


class GlobalModel(NamedTuple):
    x: Tensor  # [d]


def score(
    run: PreparedRun, request: ScoreRequest, fed: Federation, x: Tensor, buffers: Tensor, mem: Record | None
) -> ScoreReply:
    """On the client: how good the model x is on its held-out samples. mem: the client's record, None if it has none."""
    held, work = run.held_out(fed, request.client), run.work_on(fed, request.client)
    rows = held.rows_of(request.client)
    if not len(rows):
        raise InvalidMessage("this client has too few samples to hold out any")
    if run.private and mem is not None:  # these layers are the client's own
        buffers = mem.values
    with one_thread(run.objective.model.device):
        if request.single:
            before, after = score_client(work, request.client, rows, x, buffers, request.round, request.lr_factor)
        else:
            before, after = evaluate(run.objective, x, buffers, held_out_batches(work, rows)), NOTHING
    return ScoreReply(
        run=request.run,
        round=request.round,
        client=request.client,
        accuracy=_as_number(before["accuracy"]),
        loss=before["loss"],
        accuracy_after=_as_number(after["accuracy"]),
        loss_after=after["loss"],
    )


def _as_number(accuracy: float | None) -> float:
    return math.nan if accuracy is None else accuracy


class ScoreExchange:
    """On the server: sends the model to all clients that hold out samples, and collects their scores."""

    def __init__(self, runner: SuperNodeRunner, t: int, x: Tensor, buffers: Tensor, lr_factor: float, single: bool) -> None:
        self.runner, self.supernodes, self.t = runner, runner.supernodes, t
        self.lr_factor, self.single = lr_factor, single
        self.bytes_up = self.bytes_down = 0
        self.records = {"model": to_arrays(GlobalModel(x))}
        if not runner.work.objective.model.private:
            self.records["buffers"] = to_arrays(PrivateLayers(buffers))

    def result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The scores over all held-out samples, and further columns of the history."""
        scores = dict(self._scores())
        held = self._held_out()
        weights = [held[client] for client in scores]
        found = dict(NOTHING)
        for name in ("accuracy", "loss"):
            values = [getattr(one, name) for one in scores.values()]
            if values and not any(map(math.isnan, values)):
                found[name] = math.fsum(n * z for n, z in zip(weights, values, strict=True)) / sum(weights)
        row = self.runner.row if self.runner.t == self.t else {}
        columns: dict[str, Any] = {"val_clients": len(scores)}
        columns["bytes_up"] = row.get("bytes_up", 0) + self.bytes_up
        columns["bytes_down"] = row.get("bytes_down", 0) + self.bytes_down
        return found, columns | (score_columns([_own(one) for one in scores.values()]) if self.single else {})

    def _held_out(self) -> dict[int, int]:
        """The clients that hold out samples, and how many."""
        sizes = held_out_sizes(self.supernodes.nodes.sizes, self.supernodes.validation)
        return {client: n for client, n in enumerate(sizes.tolist()) if n}

    def _scores(self) -> Iterator[tuple[int, ScoreReply]]:
        """The clients that replied, in their order, and their scores."""
        nodes = self.supernodes.nodes.connected()
        asked = [client for client in self._held_out() if client in nodes]
        messages = [self._message(client, nodes[client]) for client in asked]
        self.bytes_down = sum(count_bytes(message.content) for message in messages)
        found: dict[int, ScoreReply] = {}
        for index, reply in send_all(self.supernodes.grid, messages, self.supernodes.timeout):
            try:
                found[asked[index]] = self._checked(asked[index], reply)
            except Exception as error:
                self.supernodes.log(f"round {self.t}: client {asked[index]} sends no scores: {describe(error)}")
        yield from sorted(found.items())

    def _message(self, client: int, node: int) -> Message:
        request = ScoreRequest(
            run=self.supernodes.run_name,
            round=self.t,
            client=client,
            base=self.supernodes.store.live.get(client, NEW),
            single=self.single,
            lr_factor=self.lr_factor,
            task=self.runner.settings,
        )
        content = RecordDict({FIELDS: request.to_config(), **self.records})
        return Message(content, node, MessageType.EVALUATE, group_id=str(self.t))

    def _checked(self, client: int, reply: Message | Exception) -> ScoreReply:
        if isinstance(reply, Exception):
            raise InvalidMessage(f"its answer cannot be read: {describe(reply)}")
        if reply.has_error():
            raise ClientFailed(reply.error.reason)
        self.bytes_up += count_bytes(reply.content)
        scores, expected = ScoreReply.read(reply.content), (self.supernodes.run_name, self.t, client)
        if (scores.run, scores.round, scores.client) != expected:
            raise InvalidMessage("it answers another request")
        for loss in (scores.loss, scores.loss_after)[: 1 + self.single]:
            if not abs(loss) <= self.supernodes.limits.largest:
                raise InvalidMessage(f"its loss is {loss:.3g}; at most {self.supernodes.limits.largest:g} is allowed")
        if not all(math.isnan(z) or 0 <= z <= 1 for z in (scores.accuracy, scores.accuracy_after)):
            raise InvalidMessage("its accuracy is not between 0 and 1")
        return scores


def _own(reply: ScoreReply) -> ClientScore:
    """The client's own scores in a reply."""

    def scores(accuracy: float, loss: float) -> dict[str, Any]:
        return {"accuracy": None if math.isnan(accuracy) else accuracy, "loss": loss}

    return ClientScore(scores(reply.accuracy, reply.loss), scores(reply.accuracy_after, reply.loss_after))
