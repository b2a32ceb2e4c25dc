"""What a client prepares once per run: the model, and the method with the server's hyper-parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.features import check_inside
from fedkeel.core.records import Record, down_record
from fedkeel.core.steps import Objective, Step
from fedkeel.data.federation import Federation
from fedkeel.deploy.arrays import DTYPES, record_digest
from fedkeel.deploy.client_channel import ClientChannel
from fedkeel.deploy.errors import InvalidMessage
from fedkeel.deploy.messages import RunSettings
from fedkeel.engine.client_work import ClientWork, PrivateLayers
from fedkeel.engine.held_out import HeldOut, in_two_parts
from fedkeel.engine.machine import keep_freed_memory
from fedkeel.engine.objective import make_flat, objective


@dataclass(frozen=True)
class PreparedRun:
    settings: RunSettings
    method: Algorithm
    objective: Objective
    initial: Record | None  # the record of a new client
    down: Record  # has the shapes and dtypes of what the server sends
    buffers: Tensor  # [b] of a new model
    channel: ClientChannel | None  # what happens to uploads before they leave
    parts: dict[int, HeldOut] = field(default_factory=dict)  # by client, if the run has validation data

    @property
    def kept(self) -> Record | None:
        """What a new client keeps: its record, and what it could not send."""
        return self.initial if self.channel is None else self.channel.whole_record(self.initial)

    @property
    def private(self) -> bool:
        """Do the buffers stay with the client? Then they are part of its record."""
        return bool(self.objective.model.private)

    def held_out(self, fed: Federation, client: int) -> HeldOut:
        """The client's data in two parts: those to train on, and those that are held out."""
        if client not in self.parts:
            self.parts[client] = in_two_parts(fed, self.settings.validation, self.settings.seed)
        return self.parts[client]

    def work_on(self, fed: Federation, client: int) -> ClientWork:
        """The local work of this run on the client's data."""
        settings = self.settings
        if settings.validation:
            fed = self.held_out(fed, client).training
        return ClientWork(self.method, fed, self.objective, settings.seed, settings.batch_size, settings.lr_decay)


def prepare_run(
    settings: RunSettings,
    model: Any,
    method: Algorithm,
    loss: Callable[[Any, Tensor], Tensor] | None,
    device: str,
    step: Step | None = None,
) -> PreparedRun:
    """Builds the model and the records. Refuses a server whose method or initial record is another one."""
    name = method.name
    if settings.algorithm != name:
        raise InvalidMessage(f"the server runs {settings.algorithm[:40]}, but this client was set up for {name}")
    if settings.dtype not in DTYPES:
        raise InvalidMessage(f"dtype = {settings.dtype[:20]!r} is unknown")
    keep_freed_memory()
    method = dataclasses.replace(method, **settings.hyperparameters)  # type: ignore[type-var]
    dtype, private = DTYPES[settings.dtype], method.facts.private
    flat = make_flat(model, settings.seed, device, dtype, private, settings.memory_format)
    check_inside(flat.module, method.facts.needs, name)
    server, initial = method.init(flat.vector())
    if flat.private:
        initial = PrivateLayers(flat.read_buffers())
    if record_digest(initial) != settings.start:
        raise InvalidMessage(
            "the record of a new client differs from the server's: "
            "both sides must make the model with the same function and the same version of torch"
        )
    goal = objective(flat, loss, settings.weight_decay, settings.clip, settings.precision, step)
    channel = ClientChannel.read(settings, method, flat)
    return PreparedRun(settings, method, goal, initial, down_record(method, server), flat.read_buffers(), channel)
