"""Runs the clients of a round on SuperNodes: sends a request to each, and collects the replies as uploads.

The round loop is the engine's (`engine/loop.py`). It uses this runner instead of one that works on this
machine. Client records stay with the clients; the server only knows the number of the record that each client
starts from.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedkeel.channel.channel import Channel
from fedkeel.channel.feedback import draws
from fedkeel.channel.sizes import NO_LINKS, record_bytes
from fedkeel.core.algorithm import SERVER_HOOKS
from fedkeel.core.records import Record, check_finite, check_ranges, trial_upload
from fedkeel.deploy.arrays import arrays_of, count_bytes, dtype_name, record_digest, to_arrays, to_record
from fedkeel.deploy.audit import AuditLog
from fedkeel.deploy.client_channel import at_clients, packed_down, unpacked_upload
from fedkeel.deploy.errors import WRONG_CLIENT, ClientFailed, InvalidMessage
from fedkeel.deploy.limits import Limits
from fedkeel.deploy.messages import FIELDS, NEW, RunSettings, TrainReply, TrainRequest, fields_not_sent
from fedkeel.deploy.nodes import ClientNodes
from fedkeel.deploy.polling import send_all
from fedkeel.deploy.record_numbers import RecordNumbers
from fedkeel.engine.client_work import ClientWork, Exchange, PrivateLayers, RecordStack, Uploads
from fedkeel.errors import describe

FEWEST_NORMS = 3  # uploads whose median says which length is usual
ASK_AGAIN = 5.0  # seconds before the clients that failed get another request


@dataclass
class SuperNodes:
    """The clients that are connected to a SuperLink: what `train` needs to run rounds on them."""

    grid: Grid
    nodes: ClientNodes
    run_name: str
    timeout: float  # seconds that clients have for a reply
    patience: float  # seconds to wait for missing clients if too few have replied
    min_clients: int
    limits: Limits  # of what a reply may contain
    validation: float  # part of its samples that every client holds out
    log: Callable[[str], None]
    audit: AuditLog | None = None
    name: str = "flower"
    channel: Channel | None = None  # of the run; the round loop sets it

    def __post_init__(self) -> None:
        self.store = RecordNumbers()

    def begin(self, work: ClientWork, initial: Record | None) -> SuperNodeRunner:
        self.runner = SuperNodeRunner(self, work, initial)
        return self.runner

    def validate(
        self, t: int, x: Tensor, buffers: Tensor, lr_factor: float, single: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        from fedkeel.deploy.validation import ScoreExchange

        return ScoreExchange(self.runner, t, x, buffers, lr_factor, single).result()


class SuperNodeRunner:
    """Runs the exchanges of a run, one after the other."""

    def __init__(self, supernodes: SuperNodes, work: ClientWork, initial: Record | None) -> None:
        what = supernodes.channel.what if supernodes.channel is not None else None
        self.links = NO_LINKS if what is None else what.links
        self.supernodes, self.work = supernodes, work
        self.keeps_records = initial is not None or self.links.uplink is not None
        self.settings = run_settings(work, supernodes.validation, record_digest(initial), supernodes.channel).to_json()
        self.row: dict[str, Any] = {}  # entries for the round's row in metrics.jsonl
        self.t: int | None = None

    def close(self) -> None:
        """Nothing to do: the SuperNodes belong to their owners."""

    def run(self, exchange: Exchange) -> Uploads:
        """Sends the requests of an exchange and collects the replies.

        While fewer than `min_clients` have replied, it asks the others again, for `patience` seconds.
        """
        if self.t != exchange.t:  # a round may have two exchanges, whose bytes are added
            self.t, self.row = exchange.t, {"answered": [], "fresh": [], "bytes_up": 0, "bytes_down": 0}
        self.row["answered"] = []
        messages = MessageExchange(self, exchange)
        S, faults = len(exchange.ids), messages.uploads.faults
        needed, end = min(self.supernodes.min_clients, S), None
        while True:
            messages.ask_missing()
            if S - len(faults) >= needed or (end and time.monotonic() > end):
                break
            end = end or time.monotonic() + self.supernodes.patience
            self.supernodes.log(f"{S - len(faults)} of {S} clients answered, {needed} are needed: asking the others again")
            time.sleep(min(ASK_AGAIN, self.supernodes.patience))
        messages.drop_long()
        self.row["answered"] = sorted(exchange.ids[position] for position in range(S) if position not in faults)
        for position, why in sorted(faults.items()):
            self.supernodes.log(f"round {exchange.t}: client {exchange.ids[position]} is dropped: {why}")
        if self.supernodes.audit is not None:
            messages.write_down(self.supernodes.audit)
        return messages.uploads


class MessageExchange:
    """One exchange: the requests to the clients of a round, and the replies so far."""

    def __init__(self, runner: SuperNodeRunner, exchange: Exchange) -> None:
        self.runner, self.supernodes, self.exchange = runner, runner.supernodes, exchange
        model, S = runner.work.objective.model, len(exchange.ids)
        self.like = trial_upload(runner.work.algo, exchange.stage, model.layers, model.dtype)  # shapes of an upload
        self.uploads = Uploads(
            up=RecordStack(self.like, S).record,
            buffers=torch.zeros(S, len(exchange.buffers)).double(),
            losses=torch.zeros(S).double(),
            faults={},
            slots={},
            extra_columns=runner.row,
        )
        self.largest = runner.supernodes.limits.largest
        self.missing = set(range(S))  # positions of clients without a valid reply
        self.private = bool(model.private)
        links, self.uplink = runner.links, None if exchange.stage == "warmup" else runner.links.uplink
        self.down = to_arrays(
            exchange.down, packed=packed_down(exchange.down, links.downlink)
        )  # the same object for all clients, so Flower uploads its bytes once
        self.buffers = None if self.private else to_arrays(PrivateLayers(exchange.buffers))
        self.most_bytes = record_bytes(self.like, self.uplink) + exchange.buffers.nbytes  # of the tensors in a reply

    def ask_missing(self) -> None:
        """Sends a request to every client without a valid reply, and waits for the replies."""
        faults, nodes = self.uploads.faults, self.supernodes.nodes.connected()
        reachable = []
        for position in sorted(self.missing):
            if self.exchange.ids[position] in nodes:
                faults[position] = f"Timeout: no answer within {self.supernodes.timeout:g} s"
                reachable.append(position)
            else:
                faults[position] = "NotConnected: no SuperNode says that it is this client"
        messages = [self._message(position, nodes[self.exchange.ids[position]]) for position in reachable]
        self.runner.row["bytes_down"] += sum(count_bytes(message.content) for message in messages)
        for index, reply in send_all(self.supernodes.grid, messages, self.supernodes.timeout):
            position = reachable[index]
            try:
                self._accept(position, reply)
            except Exception as error:
                faults[position] = describe(error)
            else:
                del faults[position]
                self.missing.remove(position)

    def _message(self, position: int, node: int) -> Message:
        content = RecordDict({FIELDS: self._request(position).to_config(), "down": self.down})
        if self.buffers is not None:
            content["buffers"] = self.buffers
        return Message(content, node, MessageType.TRAIN, group_id=str(self.exchange.t))

    def _request(self, position: int) -> TrainRequest:
        exchange, client = self.exchange, self.exchange.ids[position]
        return TrainRequest(
            run=self.supernodes.run_name,
            stage=exchange.stage,
            round=exchange.t,
            client=client,
            steps=int(exchange.K[position]),
            base=self.supernodes.store.live.get(client, NEW),
            record=record_number(exchange),
            drawn=json.dumps(exchange.roles(position)),
            lr_factor=exchange.lr_factor,
            task=self.runner.settings,
        )

    def _accept(self, position: int, reply: Message | Exception) -> None:
        """Checks a reply and stores its upload."""
        content = self._content(position, reply)
        size = count_bytes(content)
        self.runner.row["bytes_up"] += size
        if size > self.most_bytes:
            raise InvalidMessage(f"its tensors have {size} bytes; at most {self.most_bytes} are allowed")
        self._check_names(content)
        fields = TrainReply.read(content)
        request = self._request(position)
        for name in ("run", "stage", "round", "client"):
            theirs, ours = getattr(fields, name), getattr(request, name)
            if theirs != ours:
                raise InvalidMessage(f"it answers for {name} {str(theirs)[:40]!r}, not {ours!r}")
        if abs(fields.loss) > self.largest:  # NaN is allowed: a site may keep its loss for itself
            raise InvalidMessage(f"its loss is {fields.loss:.3g}; at most {self.largest:g} is allowed")
        without = fields_not_sent(self.runner.work.algo, self.exchange.roles(position))
        arrays, unpacked = arrays_of(content, "up"), {}
        if self.uplink is not None:
            drawn = (self.runner.work.seed, self.exchange.t, self.exchange.stage)
            unpacked = unpacked_upload(arrays, self.like, self.uplink, lambda name: draws(*drawn, name, request.client))
        up = to_record(arrays, self.like, without, unpacked)
        check_finite(up)
        check_ranges(up)
        self._check_size(up)
        self.uploads.buffers[position] = self._checked_buffers(content)
        self.uploads.losses[position] = fields.loss
        for target, z in zip(self.uploads.up, up, strict=True):
            target[position] = z
        if self.runner.keeps_records:
            self.uploads.slots[position] = record_number(self.exchange)
        if fields.fresh:
            self.runner.row["fresh"].append(fields.client)
            self.supernodes.log(f"client {fields.client} has lost its record and begins as a new client")

    def write_down(self, audit: AuditLog) -> None:
        """Writes to the audit log what was sent, who replied what, and who was dropped."""
        where = {"round": self.exchange.t, "stage": self.exchange.stage}
        audit.add("sent", **where, to=self.exchange.ids, digest=record_digest(self.exchange.down))
        for position, client in enumerate(self.exchange.ids):
            if position in self.uploads.faults:
                audit.add("dropped", **where, client=client, why=self.uploads.faults[position])
            else:
                upload = type(self.like)(*(z[position] for z in self.uploads.up))
                audit.add("reply", **where, client=client, digest=record_digest(upload))

    def drop_long(self) -> None:
        """Drops the uploads that are much longer than the others, if the limits say so."""
        factor, faults = self.supernodes.limits.norm_bound, self.uploads.faults
        here = [position for position in range(len(self.exchange.ids)) if position not in faults]
        if factor is None or len(here) < FEWEST_NORMS:
            return
        for name, z in self.uploads.up._asdict().items():
            norms = torch.linalg.vector_norm(z[here].flatten(1).double(), dim=1)
            most = factor * float(norms.median())
            for position, norm in zip(here, norms.tolist(), strict=True):
                if norm > most > 0:
                    faults.setdefault(position, f"TooLong: {name} has norm {norm:.3g}; the round's bound is {most:.3g}")

    def _content(self, position: int, reply: Message | Exception) -> RecordDict:
        if isinstance(reply, Exception):
            raise InvalidMessage(f"its answer cannot be read: {describe(reply)}")
        if reply.has_error():
            if reply.error.code == WRONG_CLIENT:
                self.supernodes.nodes.forget(self.exchange.ids[position])
            raise ClientFailed(reply.error.reason)
        return reply.content

    def _check_names(self, content: RecordDict) -> None:
        """Raises if a reply has records that nobody asked for: they would only take memory."""
        allowed = {FIELDS, "up"} if self.private else {FIELDS, "up", "buffers"}
        if extra := set(content) - allowed:
            raise InvalidMessage(f"it has the records {sorted(name[:20] for name in extra)[:4]}, which nobody asked for")

    def _check_size(self, up: Record) -> None:
        largest = self.largest
        for name, z in up._asdict().items():  # whole numbers hold packed bits (fedcams), so their size says nothing
            if z.is_floating_point() and z.numel() and (size := float(z.abs().max())) > largest:
                raise InvalidMessage(f"{name} has a number of size {size:.3g}; at most {largest:g} is allowed")

    def _checked_buffers(self, content: RecordDict) -> Tensor:
        if self.private:
            return self.exchange.buffers
        buffers: Tensor = to_record(arrays_of(content, "buffers"), PrivateLayers(self.exchange.buffers)).values
        self.runner.work.objective.model.check_buffers(buffers, self.exchange.buffers)
        if bool((self.exchange.buffers.isfinite() & (buffers.abs() > self.largest)).any()):
            raise InvalidMessage(f"the model's buffers have a number larger than {self.largest:g}")
        return buffers


def run_settings(work: ClientWork, validation: float, start: str, channel: Channel | None) -> RunSettings:
    return RunSettings(
        algorithm=work.algo.name,
        hyperparameters=dataclasses.asdict(work.algo),  # type: ignore[call-overload]
        seed=work.seed,
        batch_size=work.batch_size,
        lr_decay=work.lr_decay,
        weight_decay=work.objective.weight_decay,
        clip=work.objective.clip,
        dtype=dtype_name(work.objective.model.dtype),
        memory_format=work.objective.model.memory_format,
        precision=work.objective.precision,
        validation=validation,
        start=start,
        **at_clients(channel),
    )


def record_number(exchange: Exchange) -> int:
    """The number of the records that an exchange makes. It is larger than that of every earlier exchange."""
    return (exchange.t + 1) * len(SERVER_HOOKS) + list(SERVER_HOOKS).index(exchange.stage)
