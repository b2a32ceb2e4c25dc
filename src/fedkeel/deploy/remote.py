"""Who runs the clients of a round when they are SuperNodes: orders go out as messages, answers come back as uploads.

The round loop is that of every engine (`engine/loop.py`); this is what it calls instead of a process of its own. Client
memory stays with the clients: the server knows the number of the record that each should go on from, and no more.
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

from fedkeel.core.algorithm import STEPS
from fedkeel.core.records import check_finite
from fedkeel.core.trial import trial_upload
from fedkeel.deploy.client import digest, unsent
from fedkeel.deploy.messages import FACTS, NEW, Order, Refused, Reply, Task, arrays_of, count_bytes, to_arrays, to_record
from fedkeel.deploy.roster import Roster, exchange
from fedkeel.engine.client_work import ClientWork, Exchange, PrivateLayers, RecordStack, Uploads
from fedkeel.errors import describe


class Elsewhere:
    """In the place of a Store: which of its own records each client should go on from."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}  # client -> number of its record

    def __contains__(self, client: int) -> bool:
        return False  # none of them can be read here

    def commit(self, client: int, number: int) -> None:
        self.live[client] = number

    def discard(self, number: int) -> None:
        pass  # the client is never asked to go on from it

    def index(self) -> dict[str, Tensor]:
        live = torch.tensor(list(self.live.items()), dtype=torch.int64).reshape(-1, 2)
        return {"elsewhere.clients": live[:, 0].contiguous(), "elsewhere.records": live[:, 1].contiguous()}

    def pin(self) -> None:
        pass

    def restore(self, index: dict[str, Tensor]) -> None:
        if "elsewhere.clients" not in index:
            raise ValueError("resume: this run was not deployed; its clients' memory lies in its own directory")
        self.live = dict(zip(index["elsewhere.clients"].tolist(), index["elsewhere.records"].tolist(), strict=True))


@dataclass
class Flower:
    """The clients that are connected to a SuperLink."""

    grid: Grid
    roster: Roster
    run: str  # name of the run
    timeout: float  # seconds that clients have to answer
    patience: float  # seconds to wait for clients that are missing, if too few have answered
    min_clients: int
    largest: float  # no number in an upload may be larger
    say: Callable[[str], None]
    name: str = "flower"

    def __post_init__(self) -> None:
        self.store = Elsewhere()

    def begin(self, work: ClientWork, initial: Any) -> Exchanges:
        return Exchanges(self, work, initial)


class Exchanges:
    """Runs the exchanges of a run, one after the other."""

    def __init__(self, flower: Flower, work: ClientWork, initial: Any) -> None:
        self.flower, self.work, self.keeps = flower, work, initial is not None
        self.task = task_of(work, digest(initial)).text()
        self.told: dict[str, Any] = {}
        self.t: int | None = None

    def close(self) -> None:
        pass

    def run(self, jobs: Exchange) -> Uploads:
        """Sends the orders of an exchange, takes the answers; again to those who failed, while too few have answered."""
        if self.t != jobs.t:  # a round may have two exchanges
            self.t, self.told = jobs.t, {"answered": [], "fresh": [], "bytes_up": 0, "bytes_down": 0}
        self.told["answered"] = []
        S, b = len(jobs.ids), len(jobs.buffers)
        up = trial_upload(self.work.algo, jobs.stage, self.work.objective.model.layers, self.work.objective.model.dtype)
        uploads = Uploads(RecordStack(up, S).record, torch.zeros(S, b).double(), torch.zeros(S).double(), {}, {}, self.told)
        answers = Answers(self, jobs, up, uploads)
        least, end = min(self.flower.min_clients, S), None
        while True:
            answers.gather()
            if S - len(uploads.faults) >= least or (end and time.monotonic() > end):
                break
            end = end or time.monotonic() + self.flower.patience
            self.flower.say(
                f"{S - len(uploads.faults)} of {S} clients answered, {least} are needed: asking the others again"
            )
            time.sleep(min(5.0, self.flower.patience))
        self.told["answered"] = sorted(jobs.ids[z] for z in range(S) if z not in uploads.faults)
        for position, why in sorted(uploads.faults.items()):
            self.flower.say(f"round {jobs.t}: client {jobs.ids[position]} is dropped: {why}")
        return uploads

    def order(self, jobs: Exchange, position: int) -> Order:
        client, drawn = jobs.ids[position], jobs.roles(position)
        return Order(
            run=self.flower.run,
            stage=jobs.stage,
            round=jobs.t,
            client=client,
            steps=int(jobs.K[position]),
            base=self.flower.store.live.get(client, NEW),
            record=number(jobs),
            drawn=json.dumps(drawn),
            task=self.task,
        )


@dataclass
class Answers:
    """What has come back of one exchange."""

    exchanges: Exchanges
    jobs: Exchange
    up: Any  # an upload, for its form
    uploads: Uploads

    def __post_init__(self) -> None:
        self.missing = set(range(len(self.jobs.ids)))
        self.private = bool(self.exchanges.work.objective.model.private)
        self.down = to_arrays(self.jobs.down)  # one for all, so that Flower sends its bytes to the SuperLink once
        self.buffers = None if self.private else to_arrays(PrivateLayers(self.jobs.buffers))

    def gather(self) -> None:
        """Asks all that have not answered well, once."""
        flower, faults, jobs = self.exchanges.flower, self.uploads.faults, self.jobs
        nodes = flower.roster.look()
        asked = []
        for position in sorted(self.missing):
            faults[position] = f"Timeout: no answer within {flower.timeout:g} s"
            if jobs.ids[position] in nodes:
                asked.append(position)
            else:
                faults[position] = "NotConnected: no SuperNode says that it is this client"
        messages = [self._message(position, nodes[jobs.ids[position]]) for position in asked]
        self.exchanges.told["bytes_down"] += sum(count_bytes(message.content) for message in messages)
        for place, reply in exchange(flower.grid, messages, flower.timeout):
            position = asked[place]
            try:
                self._take(position, reply)
            except Exception as error:
                faults[position] = describe(error)
            else:
                del faults[position]
                self.missing.remove(position)

    def _message(self, position: int, node: int) -> Message:
        content = RecordDict({FACTS: self.exchanges.order(self.jobs, position).config(), "down": self.down})
        if self.buffers is not None:
            content["buffers"] = self.buffers
        return Message(content, node, MessageType.TRAIN, group_id=str(self.jobs.t))

    def _take(self, position: int, reply: Message | Exception) -> None:
        """Checks an answer and puts it in its place."""
        if isinstance(reply, Exception):
            raise Refused(f"its answer cannot be read: {describe(reply)}")
        if reply.has_error():
            if "this node is client" in reply.error.reason:
                self.exchanges.flower.roster.forget(self.jobs.ids[position])
            raise Refused(reply.error.reason)
        self.exchanges.told["bytes_up"] += count_bytes(reply.content)
        told = Reply.read(reply.content)
        order = self.exchanges.order(self.jobs, position)
        for field in ("run", "stage", "round", "client"):
            if getattr(told, field) != getattr(order, field):
                raise Refused(f"it answers for {field} {str(getattr(told, field))[:40]!r}, not {getattr(order, field)!r}")
        without = unsent(self.exchanges.work.algo, self.jobs.roles(position))
        up = to_record(arrays_of(reply.content, "up"), self.up, without)
        check_finite(up)
        self._check_size(up)
        self.uploads.buffers[position] = self._buffers(reply)
        self.uploads.losses[position] = told.loss
        for target, z in zip(self.uploads.up, up, strict=True):
            target[position] = z
        if self.exchanges.keeps:
            self.uploads.slots[position] = number(self.jobs)
        if told.fresh:
            self.exchanges.told["fresh"].append(told.client)
            self.exchanges.flower.say(f"client {told.client} has lost its record and begins as a new client")

    def _check_size(self, up: Any) -> None:
        for name, z in up._asdict().items():
            if z.numel() and float(z.abs().max()) > self.exchanges.flower.largest:
                raise Refused(
                    f"{name} has a number of size {float(z.abs().max()):.3g}, allowed are {self.exchanges.flower.largest:g}"
                )

    def _buffers(self, reply: Message) -> Tensor:
        if self.private:
            return self.jobs.buffers
        buffers: Tensor = to_record(arrays_of(reply.content, "buffers"), PrivateLayers(self.jobs.buffers)).values
        # Buffers may be infinite from the start (masks of attention), but must not become so.
        if bool((self.jobs.buffers.isfinite() & ~(buffers.abs() <= self.exchanges.flower.largest)).any()):
            raise Refused("the model's buffers are not finite, or too large")
        return buffers


def task_of(work: ClientWork, start: str) -> Task:
    """What clients must know of a run."""
    hyperparameters = dataclasses.asdict(work.algo)  # type: ignore[call-overload]
    objective = work.objective
    dtype = str(objective.model.dtype).removeprefix("torch.")
    return Task(
        work.algo.name,
        hyperparameters,
        work.seed,
        work.batch_size,
        work.lr_decay,
        objective.weight_decay,
        objective.clip,
        dtype,
        start,
    )


def number(jobs: Exchange) -> int:
    """The number of the records that clients make in an exchange: larger in every later one."""
    return (jobs.t + 1) * len(STEPS) + list(STEPS).index(jobs.stage)
