"""The bytes of records as they travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.channel.link import Link
    from fedkeel.core.algorithm import Algorithm
    from fedkeel.core.round import Round


@dataclass(frozen=True)
class Links:
    """How vectors are compressed on their way. None: they are sent as they are."""

    uplink: Link | None = None
    downlink: Link | None = None


NO_LINKS = Links()


def field_bytes(name: str, shape: Sequence[int], itemsize: int, link: Link | None) -> int:
    """The bytes of one field of a record. itemsize: bytes of an ordinary number."""
    if link is not None and link.takes(name, shape):
        return link.nbytes(itemsize)
    return math.prod(shape) * itemsize


def record_bytes(record: Any, link: Link | None = None) -> int:
    """The bytes of one record."""
    return sum(field_bytes(name, z.shape, z.element_size(), link) for name, z in record._asdict().items())


def upload_bytes(algo: Algorithm, up: Any, r: Round, uplink: Link | None) -> float:
    """The mean bytes of an upload as it travels. up: record of [S, ...]. Only clients with the role `tracks` send the fields
    that the method declares as tracked."""
    total = 0.0
    for name, z in up._asdict().items():
        size = field_bytes(name, z.shape[1:], z.element_size(), uplink)
        total += size * (float(r.drawn.tracks.mean()) if name in algo.facts.tracked else 1.0)
    return total
