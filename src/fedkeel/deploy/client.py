"""What a SuperNode does with a message: it introduces itself, does its local work, or evaluates a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import Tensor

from fedkeel.core.algorithm import SERVER_HOOKS, Algorithm, make
from fedkeel.core.records import Record
from fedkeel.core.steps import Step
from fedkeel.data.federation import Federation
from fedkeel.deploy.arrays import arrays_of, to_arrays, to_record
from fedkeel.deploy.client_channel import unpacked_upload
from fedkeel.deploy.client_memory import ClientMemory
from fedkeel.deploy.errors import InvalidMessage, WrongClient, WrongNodeConfig, error_reply
from fedkeel.deploy.keys import introduction, private_key, sign
from fedkeel.deploy.local_data import as_federation
from fedkeel.deploy.messages import (
    FIELDS,
    ClientInfo,
    Hello,
    RunSettings,
    ScoreRequest,
    TrainReply,
    TrainRequest,
    fields_not_sent,
)
from fedkeel.deploy.policy import policy_of
from fedkeel.deploy.prepared_run import PreparedRun, prepare_run
from fedkeel.deploy.validation import GlobalModel, score
from fedkeel.engine.client_work import ClientResult, ClientTask, PrivateLayers
from fedkeel.engine.machine import one_thread


class MessageHandler:
    """Replies to the server's messages. Flower may keep the process, and so this object, between messages."""

    def __init__(
        self,
        model: Any,
        load_data: Callable[[Context], Any],
        algorithm: str | Algorithm,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
        device: str = "auto",
        sends_loss: bool = True,
        step: Step | None = None,
    ) -> None:
        self.model, self.load_data, self.loss, self.device = model, load_data, loss, device
        self.method = make(algorithm) if isinstance(algorithm, str) else algorithm
        self.sends_loss, self.step = sends_loss, step
        self.data: dict[int, Federation] = {}  # by client: in Flower's simulation, a process has many
        self.prepared: dict[str, PreparedRun] = {}  # by the JSON of the run's settings; holds one run at most

    def hello(self, message: Message, context: Context) -> Message:
        """Says which client this is, and how many samples it has."""
        return _reply(message, lambda: self._introduce(Hello.read(message.content), context))

    def train(self, message: Message, context: Context) -> Message:
        """Does one client's part of a round."""
        return _reply(message, lambda: self._train(message.content, context))

    def evaluate(self, message: Message, context: Context) -> Message:
        """Says how good the server's model is on the samples that this client holds out."""
        return _reply(message, lambda: self._score(message.content, context))

    def _introduce(self, hello: Hello, context: Context) -> RecordDict:
        client = client_number(context)
        samples = self._data_of(client, context).size(client)
        signature = ""
        if key := context.node_config.get("key"):
            signature = sign(private_key(str(key)), introduction(hello.nonce, context.node_id, client, samples))
        info = ClientInfo(client=client, samples=samples, signature=signature)
        return RecordDict({FIELDS: info.to_config()})

    def _train(self, content: RecordDict, context: Context) -> RecordDict:
        request = TrainRequest.read(content)
        client = _addressed(request, context)
        if request.stage not in SERVER_HOOKS:
            raise InvalidMessage(f"stage = {request.stage[:20]!r} is not a request of fedkeel")
        run = self._prepared(request.task)
        down = _received(run, arrays_of(content, "down"))
        buffers = _buffers(run, content)
        memory = kept = None
        if run.kept is not None:
            memory = ClientMemory(context, request.run, client, run.kept)
            kept = memory.read(request.base)
        fresh = memory is not None and kept is None
        kept = run.kept if fresh else kept
        mem, left = (kept, None) if run.channel is None else run.channel.split(kept, run.initial)
        fed = self._data_of(client, context)
        if (policy := policy_of(context.node_config)) is not None:
            samples = run.work_on(fed, client).fed.size(client)
            policy.check_work(run.method.name, request.round, request.steps, run.settings.batch_size, samples)
        result = _local_work(run, request, fed, down, buffers, mem)
        content, left = self._content(run, request, result, fresh, left)
        if memory:
            memory.write(request.base, request.record, run.channel.joined(result.mem, left) if run.channel else result.mem)
        return content

    def _score(self, content: RecordDict, context: Context) -> RecordDict:
        request = ScoreRequest.read(content)
        client = _addressed(request, context)
        run = self._prepared(request.task)
        if not self._sends_loss(run):
            raise InvalidMessage("this site adds noise to what it sends; scores have none, so it does not send them")
        x = to_record(arrays_of(content, "model"), GlobalModel(run.down.x)).x
        memory = ClientMemory(context, request.run, client, run.kept) if run.kept is not None else None
        mem = None if memory is None else memory.read(request.base)
        if mem is not None and run.channel is not None:
            mem, _ = run.channel.split(mem, run.initial)
        scores = score(run, request, self._data_of(client, context), x, _buffers(run, content), mem)
        return RecordDict({FIELDS: scores.to_config()})

    def _content(
        self, run: PreparedRun, request: TrainRequest, result: ClientResult, fresh: bool, left: Any
    ) -> tuple[RecordDict, Any]:
        """The reply, and what the client could not send. left: what it could not send before."""
        reply = TrainReply(
            run=request.run,
            stage=request.stage,
            round=request.round,
            client=request.client,
            loss=result.loss if self._sends_loss(run) else float("nan"),
            fresh=fresh,
        )
        without = fields_not_sent(run.method, json.loads(request.drawn))
        up = result.up
        packed: dict[str, bytes] = {}
        if run.channel is not None:
            up, packed, left = run.channel.sent(request, run.settings.seed, up, left, without)
        content = RecordDict({FIELDS: reply.to_config(), "up": to_arrays(up, without, packed)})
        if not run.private:
            content["buffers"] = to_arrays(PrivateLayers(result.buffers))
        return content, left

    def _sends_loss(self, run: PreparedRun) -> bool:
        return self.sends_loss and (run.channel is None or run.channel.privacy is None)

    def _data_of(self, client: int, context: Context) -> Federation:
        if client not in self.data:
            self.data[client] = as_federation(self.load_data(context), client)
        return self.data[client]

    def _prepared(self, settings: str) -> PreparedRun:
        if settings not in self.prepared:
            run = prepare_run(RunSettings.from_json(settings), self.model, self.method, self.loss, self.device, self.step)
            self.prepared = {settings: run}
        return self.prepared[settings]


def _received(run: PreparedRun, arrays: ArrayRecord) -> Record:
    """What the server sends."""
    link = run.channel.downlink if run.channel is not None else None
    unpacked = unpacked_upload(arrays, run.down, link, lambda name: torch.Generator()) if link is not None else {}
    return to_record(arrays, run.down, unpacked=unpacked)


def _addressed(request: TrainRequest | ScoreRequest, context: Context) -> int:
    """The number of this client. Raises if the request is for another one."""
    client = client_number(context)
    if request.client != client:
        raise WrongClient(f"this node is client {client}, not {request.client}")
    if not re.fullmatch("[0-9a-f]{32}", request.run):
        raise InvalidMessage(f"run = {request.run[:40]!r} is not a request of fedkeel")
    return client


def _buffers(run: PreparedRun, content: RecordDict) -> Tensor:
    """The model's buffers in a message. Private ones do not travel; then these are the initial ones."""
    if run.private:
        return run.buffers
    return to_record(arrays_of(content, "buffers"), PrivateLayers(run.buffers)).values  # type: ignore[no-any-return]


def client_number(context: Context) -> int:
    """Which client of the run this node is: `partition-id` in its node-config."""
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise WrongNodeConfig(
            f"node-config: partition-id = {number!r} is not allowed; start the SuperNode with "
            "--node-config 'partition-id=0'. With N clients, give each number from 0 to N - 1 to one SuperNode"
        )
    return number


def _local_work(
    run: PreparedRun, request: TrainRequest, fed: Federation, down: Record, buffers: Tensor, mem: Record | None
) -> ClientResult:
    """The same call as in a simulation."""
    with one_thread(run.objective.model.device):
        work, drawn = run.work_on(fed, request.client), json.loads(request.drawn)
        # The only client of its exchange, so its position does not matter.
        task = ClientTask(request.stage, request.round, request.client, request.steps, drawn, 0, request.lr_factor)
        return work.run_client(task, down, buffers, mem)


def _reply(message: Message, content: Callable[[], RecordDict]) -> Message:
    try:
        return Message(content(), reply_to=message)
    except (Exception, SystemExit) as error:
        return error_reply(message, error)
