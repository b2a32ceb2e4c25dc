"""Compression and noise in a deployment: what the client does with its upload, and the bytes that travel."""

from __future__ import annotations

import dataclasses
import secrets
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array
from torch import Tensor

from fedkeel.channel import privacy as private
from fedkeel.channel.channel import Channel
from fedkeel.channel.feedback import nothing_kept, packed_upload
from fedkeel.channel.link import Link
from fedkeel.channel.links_of import downlink_of, uplink_of
from fedkeel.channel.privacy import Privacy
from fedkeel.channel.validity import never_negative
from fedkeel.channel.words import conditions
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import Record, exchanges_of
from fedkeel.deploy.arrays import PACKED, check_raw
from fedkeel.deploy.errors import InvalidMessage
from fedkeel.deploy.messages import RunSettings, TrainRequest


def at_clients(channel: Channel | None) -> dict[str, str | None]:
    """What clients must know of the run's channel: settings of RunSettings."""
    if channel is None:
        return {"uplink": None, "downlink": None, "privacy": None}
    links, privacy = channel.what.links, channel.what.privacy
    local = None
    if privacy is not None and privacy.where == "client":
        local = str(dataclasses.replace(privacy, noise=channel.noise, epsilon=None))
    return {
        "uplink": None if links.uplink is None else links.uplink.text,
        "downlink": None if links.downlink is None else links.downlink.text,
        "privacy": local,
    }


def packed_down(down: Record, link: Link | None) -> dict[str, bytes]:
    """The bytes of the vectors that the server sends, if it compresses them."""
    if link is None:
        return {}
    fields = {name: z for name, z in down._asdict().items() if link.takes(name, z.shape)}
    return {name: link.pack(z.cpu(), torch.Generator()) for name, z in fields.items()}


def unpacked_upload(
    arrays: Mapping[str, Array], like: Record, link: Link, draws: Callable[[str], torch.Generator]
) -> dict[str, Tensor]:
    """The vectors in these arrays. draws: field -> the random numbers with which it was compressed."""
    found: dict[str, Tensor] = {}
    for name, z in like._asdict().items():
        if not link.takes(name, z.shape) or name not in arrays:
            continue
        check_raw(arrays[name], name)
        if arrays[name].dtype != PACKED:
            raise InvalidMessage(f"{name} is {arrays[name].dtype[:20]!r}, but the run sends packed vectors")
        try:
            found[name] = link.unpack(arrays[name].data, z.dtype, draws(name)).to(z.device)
        except ValueError as error:
            raise InvalidMessage(f"{name}: {error}") from None
    return found


@dataclass(frozen=True)
class ClientChannel:
    """What a client does with its upload before it sends it."""

    uplink: Link | None
    downlink: Link | None
    privacy: Privacy | None
    not_negative: dict[str, frozenset[str]]  # exchange -> fields that noise must not make negative
    nothing: Any  # the record of a client that has sent everything

    @classmethod
    def read(cls, settings: RunSettings, method: Algorithm, model: FlatModel) -> ClientChannel | None:
        """None: the run has nothing between clients and server."""
        if not (settings.uplink or settings.downlink or settings.privacy):
            return None
        uplink = uplink_of(settings.uplink, method, model.layers)
        downlink = downlink_of(settings.downlink, method, model.layers)
        privacy: Any = next(iter(conditions("privacy", settings.privacy)), None)
        signs = {stage: never_negative(method, stage) for stage in exchanges_of(method)} if privacy else {}
        nothing = nothing_kept(uplink, method, model.dtype) if uplink else None
        return cls(uplink, downlink, privacy, signs, nothing)

    def whole_record(self, initial: Record | None) -> Any:
        """The record that a client keeps: that of the method, and what it could not send."""
        if self.nothing is None:
            return initial
        own = {} if initial is None else initial._asdict()
        fields = own | self.nothing._asdict()
        return namedtuple("ClientRecord", list(fields))(**fields)

    def split(self, kept: Any, initial: Record | None) -> tuple[Record | None, Any]:
        """(the method's record, what the client could not send) of `whole_record`."""
        if self.nothing is None:
            return kept, None
        own = None if initial is None else type(initial)(*(getattr(kept, name) for name in initial._fields))
        return own, type(self.nothing)(*(getattr(kept, name) for name in self.nothing._fields))

    def joined(self, mem: Record | None, left: Any) -> Any:
        return mem if self.nothing is None else self.whole_record(mem)._replace(**left._asdict())

    def sent(
        self, request: TrainRequest, seed: int, up: Record, left: Any, without: Collection[str]
    ) -> tuple[Record, dict[str, bytes], Any]:
        """(the upload, its packed vectors, what the client keeps). without: fields that do not travel."""
        if self.privacy is not None:
            up = type(up)(*(z.clone() for z in up))
            mine = {name: z for name, z in up._asdict().items() if name not in without}
            purpose = (noise_seed(), request.round, request.stage, request.client)
            private.protect(mine, self.privacy, self.privacy.noise or 0.0, self.not_negative[request.stage], purpose)
        if self.uplink is None or request.stage == "warmup":
            return up, {}, left
        at = (seed, request.round, request.stage, request.client)
        packed, left = packed_upload(self.uplink, up, left, *at, without)
        return up, packed, left


def noise_seed() -> int:
    """The seed of a client's noise. Nobody else may know it, so it does not follow from the seed of the run."""
    return secrets.randbits(56)
