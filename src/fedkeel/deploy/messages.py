"""What server and clients write to each other, beside the tensors: the fields of each kind of message.

A training request holds the fields of `TrainRequest`, the record `down` that goes to every client and, if the
model has any, its `buffers`. A reply holds the fields of `TrainReply`, the upload `up`, and `buffers`.
A request for scores holds the fields of `ScoreRequest`, the record `model` and `buffers`; a reply those of `ScoreReply`.
`arrays.py` turns records into arrays.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict

from fedkeel.core.algorithm import Algorithm
from fedkeel.deploy.errors import InvalidMessage

SCHEMA = 2  # version of all messages; a receiver refuses any other
FIELDS = "fedkeel"  # name of the ConfigRecord that holds a message's fields
NEW = -1  # in place of a record number: the client has no record yet
TYPES = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True, kw_only=True)
class MessageFields:
    """The fields of a message. A field that is missing or has another type is refused."""

    def to_config(self) -> ConfigRecord:
        return ConfigRecord({"schema": SCHEMA, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        config = content.config_records.get(FIELDS)
        if config is None:
            raise InvalidMessage("it is not a message of fedkeel")
        if (schema := config.get("schema")) != SCHEMA:
            raise InvalidMessage(
                f"schema {str(schema)[:20]} is unknown here; this side uses {SCHEMA}. "
                "The other side has another version of fedkeel"
            )
        values: dict[str, Any] = {}
        if extra := set(config) - {"schema", *(field.name for field in dataclasses.fields(cls))}:
            raise InvalidMessage(f"it has the fields {sorted(name[:20] for name in extra)[:4]}, which nobody asked for")
        for field in dataclasses.fields(cls):
            value = config.get(field.name)
            if type(value) is not TYPES[str(field.type)]:
                raise InvalidMessage(f"{field.name} = {str(value)[:40]!r} is not a {field.type}")
            values[field.name] = value
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Hello(MessageFields):
    """The server asks a node who it is."""

    nonce: str  # a random number, so that nobody can send the introduction of another node again


@dataclass(frozen=True, kw_only=True)
class ClientInfo(MessageFields):
    """How a node introduces itself before the first round."""

    client: int
    samples: int
    signature: str  # by the site's key; empty if its node-config has none


@dataclass(frozen=True, kw_only=True)
class TrainRequest(MessageFields):
    """What the server wants from one client in one exchange."""

    run: str  # name of the run, 32 hexadecimal digits
    stage: str  # client, survey or warmup
    round: int
    client: int
    steps: int  # K
    base: int  # number of the client record to start from; NEW if the client has none yet
    record: int  # number of the client record that this exchange makes
    drawn: str  # JSON: the client's roles in this round
    lr_factor: float  # of the run's learning-rate schedule
    task: str  # JSON of RunSettings


@dataclass(frozen=True, kw_only=True)
class TrainReply(MessageFields):
    """Which request the reply belongs to, and the client's loss."""

    run: str
    stage: str
    round: int
    client: int
    loss: float
    fresh: bool  # the client lost the record that it should start from, and started as a new client


@dataclass(frozen=True, kw_only=True)
class ScoreRequest(MessageFields):
    """The server wants to know how good its model is on the samples that a client holds out."""

    run: str
    round: int
    client: int
    base: int  # number of the client's record, whose layers are its own if the method is private
    single: bool  # also the scores after a few local steps of the client
    lr_factor: float
    task: str  # JSON of RunSettings


@dataclass(frozen=True, kw_only=True)
class ScoreReply(MessageFields):
    """The scores. NaN stands for an accuracy that is not defined, and for scores that were not asked for."""

    run: str
    round: int
    client: int
    accuracy: float  # of the model, with the client's own layers if the method is private
    loss: float
    accuracy_after: float  # after a few local steps
    loss_after: float


@dataclass(frozen=True)
class RunSettings:
    """What every client must know about the run. It stays the same during the run."""

    algorithm: str
    hyperparameters: dict[str, Any]  # complete: those that depend on N, S, K and T are filled in
    seed: int
    batch_size: int | None
    lr_decay: float
    weight_decay: float
    clip: float | None
    dtype: str
    memory_format: str  # of the model; it decides about the order of the numbers in all vectors
    precision: str | None
    validation: float  # part of a client's samples that it holds out
    uplink: str | None  # how clients compress their uploads
    downlink: str | None  # how the server compresses what it sends
    privacy: str | None  # how clients clip their uploads and add noise to them
    start: str  # hash of a new client's record, which may contain the initial model: all must have the same

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunSettings:
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"the settings of the run cannot be read: {error}") from None


def fields_not_sent(method: Algorithm, drawn: dict[str, float]) -> tuple[str, ...]:
    """Upload fields that are zero for a client with these roles, so they need not travel."""
    return method.facts.tracked if drawn.get("tracks") == 0 else ()
