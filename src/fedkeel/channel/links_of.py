"""The links of a run: which fields of its records they compress.

Fields that are never negative, such as second moments, are sent as they are. Methods divide by their roots, so a number that
becomes 0 on its way would make a step infinite.
"""

from __future__ import annotations

from fedkeel.channel.link import Link
from fedkeel.channel.validity import never_negative, never_negative_below
from fedkeel.channel.words import conditions
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import Layers
from fedkeel.core.records import exchanges_of


def uplink_of(text: str | None, algo: Algorithm, layers: Layers) -> Link | None:
    """None: uploads are sent as they are."""
    if text is None:
        return None
    link = Link(
        conditions("uplink", text), layers, frozenset().union(*(never_negative(algo, z) for z in exchanges_of(algo)))
    )
    return None if link.neutral else link


def downlink_of(text: str | None, algo: Algorithm, layers: Layers) -> Link | None:
    """None: the server's record is sent as it is."""
    return None if text is None else Link(conditions("downlink", text), layers, never_negative_below(algo))
