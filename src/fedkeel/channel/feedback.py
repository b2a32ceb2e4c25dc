"""Error feedback: what a client could not send is kept beside its record and added to its next upload.

In a simulation the server keeps it for all clients, and many uploads are compressed at once. In a deployment each client
keeps its own and sends packed bytes. Both give the same bits.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedkeel.channel.draws import generator
from fedkeel.channel.link import Link
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.records import Record, exchanges_of, trial_upload


def nothing_kept(link: Link, algo: Algorithm, dtype: torch.dtype) -> Any:
    """The record of a client that has sent everything: zeros for every vector of every exchange. None: it sends none.

    A warm-up is sent as it is.
    """
    fields: dict[str, Tensor] = {}
    for stage in [stage for stage in exchanges_of(algo) if stage != "warmup"]:
        for name, z in trial_upload(algo, stage, link.layers, dtype)._asdict().items():
            if link.takes(name, z.shape):
                fields[f"{stage}_{name}"] = torch.zeros_like(z, device="cpu")
    return namedtuple("NotSent", list(fields))(**fields) if fields else None


def draws(seed: int, t: int, stage: str, field: str, client: int) -> torch.Generator:
    """The random numbers with which a client compresses a field. The server can make the same ones."""
    return generator(seed, "uplink", t, stage, field, client)


def packed_upload(
    link: Link, up: Record, kept: Any, seed: int, t: int, stage: str, client: int, without: Collection[str]
) -> tuple[dict[str, bytes], Any]:
    """What one client sends of the vectors of its upload, and what it keeps. without: fields that do not travel."""
    sent: dict[str, bytes] = {}
    for name, z in up._asdict().items():
        if not link.takes(name, z.shape) or name in without:
            continue
        key = f"{stage}_{name}"
        whole = z.cpu() + getattr(kept, key)
        sent[name] = link.pack(whole, draws(seed, t, stage, name, client))
        arrived = link.unpack(sent[name], whole.dtype, draws(seed, t, stage, name, client))
        kept = kept._replace(**{key: whole - arrived})
    return sent, kept
