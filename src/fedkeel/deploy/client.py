"""What a client does with a message: `ClientWork.run_client` as in every engine, on its own data and its own record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from torch import Tensor

from fedkeel.core.algorithm import STEPS, Algorithm
from fedkeel.core.features import check_inside
from fedkeel.core.records import Record, down_record
from fedkeel.core.registry import make
from fedkeel.data.federation import Federation
from fedkeel.deploy.memory import Memory
from fedkeel.deploy.messages import (
    DTYPES,
    FACTS,
    RAISED,
    Hello,
    Order,
    Refused,
    Reply,
    Task,
    arrays_of,
    to_arrays,
    to_record,
)
from fedkeel.engine.allocator import keep_freed_memory
from fedkeel.engine.client_work import ClientResult, ClientTask, ClientWork, PrivateLayers, one_thread
from fedkeel.engine.loss import objective
from fedkeel.engine.train import make_flat
from fedkeel.errors import describe


def client_number(context: Context) -> int:
    """Which client of the run this node is: `partition-id` in its config."""
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise Refused(
            f"node-config: partition-id = {number!r} is not allowed; start the SuperNode with "
            "--node-config 'partition-id=0' (0 to N - 1, each once)"
        )
    return number


class Alone(Federation):
    """The data of one client, under whatever number it has in the run."""

    def size(self, client: int) -> int:
        return len(self.y)

    def rows(self, client: int, numbers: np.ndarray) -> np.ndarray:
        return numbers


def as_federation(data: Any) -> Federation:
    """What `load_data` returned: a federation of which this client is one, or its own (x, y) alone."""
    if isinstance(data, Federation):
        return data
    own = Federation.from_arrays([data])
    return Alone(own.x, own.y, own.offsets, np.arange(len(own.y)))


def digest(record: Record | None) -> str:
    """A hash of a record's numbers."""
    made = hashlib.blake2b(digest_size=16)
    for z in record or ():
        made.update(memoryview(z.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return made.hexdigest()


@dataclass
class Duty:
    """A task, ready to be worked on."""

    work: ClientWork
    initial: Any  # the record of a new client
    down: Any  # a record of the form in which the server sends
    buffers: Tensor  # [b] of a new model
    private: bool  # do they stay with the client? Then they are part of its record


class Node:
    """A client's side of all runs; Flower may keep its process, and so this object, from one message to the next."""

    def __init__(
        self,
        model: Any,
        load_data: Callable[[Context], Any],
        algorithm: str | Algorithm,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
        device: str = "auto",
        tells_loss: bool = True,
    ) -> None:
        self.model, self.load_data, self.loss, self.device = model, load_data, loss, device
        self.algorithm = make(algorithm) if isinstance(algorithm, str) else algorithm
        self.tells_loss = tells_loss
        self.data: dict[int, Federation] = {}  # by client: in a simulation, a process is many of them
        self.duties: dict[str, Duty] = {}

    def hello(self, message: Message, context: Context) -> Message:
        """Which client this is, and how many samples it has."""

        def answer() -> RecordDict:
            client = client_number(context)
            return RecordDict({FACTS: Hello(client=client, samples=self._own(context, client).size(client)).config()})

        return replied(message, answer)

    def train(self, message: Message, context: Context) -> Message:
        """One client's part of a round."""
        return replied(message, lambda: self._train(message.content, context))

    def _train(self, content: RecordDict, context: Context) -> RecordDict:
        order = Order.read(content)
        client = client_number(context)
        if order.client != client:
            raise Refused(f"this node is client {client}, not {order.client}")
        if not re.fullmatch("[0-9a-f]{32}", order.run) or order.stage not in STEPS:
            raise Refused(f"run = {order.run[:40]!r}, stage = {order.stage[:20]!r} are not an order of fedkeel")
        duty = self._duty(order.task)
        down = to_record(arrays_of(content, "down"), duty.down)
        buffers = duty.buffers
        if not duty.private:
            buffers = to_record(arrays_of(content, "buffers"), PrivateLayers(buffers)).values
        memory = Memory(context, order.run, client, duty.initial) if duty.initial is not None else None
        mem = memory.read(order.base) if memory else None
        fresh = memory is not None and mem is None
        with one_thread():
            duty.work.fed = self._own(context, client)
            drawn = json.loads(order.drawn)
            mem = duty.initial if fresh else mem
            # The only client of its exchange, so its position does not matter.
            task = ClientTask(order.stage, order.round, client, order.steps, drawn, position=0)
            result = duty.work.run_client(task, down, buffers, mem)
        if memory:
            memory.write(order.base, order.record, result.mem)
        content = self._answer(order, result, fresh, drawn)
        if not duty.private:
            content["buffers"] = to_arrays(PrivateLayers(result.buffers))
        return content

    def _answer(self, order: Order, result: ClientResult, fresh: bool, drawn: dict[str, float]) -> RecordDict:
        loss = result.loss if self.tells_loss else float("nan")
        told = Reply(run=order.run, stage=order.stage, round=order.round, client=order.client, loss=loss, fresh=fresh)
        return RecordDict({FACTS: told.config(), "up": to_arrays(result.up, unsent(self.algorithm, drawn))})

    def _own(self, context: Context, client: int) -> Federation:
        if client not in self.data:
            self.data[client] = as_federation(self.load_data(context))
        return self.data[client]

    def _duty(self, text: str) -> Duty:
        if text not in self.duties:
            self.duties = {text: self._prepare(Task.read(text))}  # a process works for one run at a time
        return self.duties[text]

    def _prepare(self, task: Task) -> Duty:
        algo, own = self.algorithm, self.algorithm.name
        if task.algorithm != own:
            raise Refused(f"the server runs {task.algorithm[:40]}, this client was set up for {own}")
        if task.dtype not in DTYPES:
            raise Refused(f"dtype = {task.dtype[:20]!r} is unknown")
        keep_freed_memory()
        algo = dataclasses.replace(algo, **task.hyperparameters)  # type: ignore[type-var]
        flat = make_flat(self.model, task.seed, self.device, DTYPES[task.dtype], private=algo.facts.private)
        check_inside(flat.module, algo.facts.needs, own)
        server, initial = algo.init(flat.vector())
        if flat.private:
            initial = PrivateLayers(flat.read_buffers())
        if digest(initial) != task.start:
            raise Refused(
                "the record of a new client is not the server's: the model must be made by the same function and torch"
            )
        goal = objective(flat, self.loss, task.weight_decay, task.clip)
        nobody = Federation(torch.zeros(1), torch.zeros(1), np.array([0, 1]))
        work = ClientWork(algo, nobody, goal, task.seed, task.batch_size, task.lr_decay)
        return Duty(work, initial, down_record(algo, server), flat.read_buffers(), bool(flat.private))


def unsent(algo: Algorithm, drawn: dict[str, float]) -> tuple[str, ...]:
    """Upload fields that a client with these roles need not send, since they are zero."""
    return algo.facts.tracked if drawn.get("tracks") == 0 else ()


def replied(message: Message, answer: Callable[[], RecordDict]) -> Message:
    """The answer, or the error in words: one client's failure must not look like the network's."""
    try:
        return Message(answer(), reply_to=message)
    except Exception as error:
        return Message(Error(RAISED, describe(error)), reply_to=message)
