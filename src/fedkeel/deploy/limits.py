"""The limits that a server sets its clients, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.errors import refuse

TIMEOUT = 600.0  # seconds: for a reply, and to wait for clients that are missing
LARGEST = 1e8  # the largest number that an upload may contain
MOST_SAMPLES = 10**8  # of one client; a client that claims more would take all the weight


@dataclass(frozen=True)
class Limits:
    """What a reply may contain. A client that exceeds a limit is dropped from the round and named."""

    largest: float = LARGEST  # no number in an upload, buffer or loss may be larger
    most_samples: int = MOST_SAMPLES  # a client that says that it has more is not used
    norm_bound: float | None = None  # no field of an upload may be longer than this many times the median of the round

    def __post_init__(self) -> None:
        for name in ("largest", "most_samples", "norm_bound"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise refuse(name, value, "> 0")
