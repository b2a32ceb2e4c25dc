"""What can go wrong in a round, and how it is told."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch


class RoundError(RuntimeError):
    """A round that could not be completed."""

    def __init__(self, algorithm: str, round: int, client: int | None, stage: str, why: str) -> None:
        self.algorithm, self.round, self.client, self.stage, self.why = algorithm, round, client, stage, why
        where = f", client {client}" if client is not None else ""
        super().__init__(f"{algorithm}, round {round}{where}, {stage}: {why}")

    def __reduce__(self) -> tuple[Any, ...]:  # or it could not be unpickled, and would break a pool of processes
        return type(self), (self.algorithm, self.round, self.client, self.stage, self.why)


class NotFinite(ValueError):
    """A record contains NaN or infinity."""


def check_finite(*records: Any, without: Collection[str] = ()) -> None:
    """Raises if a record is not; without: fields that are not looked at."""
    for record in records:
        if record is None:
            continue
        for name, z in [(name, z) for name, z in record._asdict().items() if name not in without]:
            # The sum is finite only if all numbers are, and cheaper than looking at each; it may overflow though.
            if not math.isfinite(z.sum()) and not bool(torch.isfinite(z).all()):
                raise NotFinite(f"{name} is not finite")


def describe(error: BaseException) -> str:
    """The error in one line, with its kind."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def in_words(error: BaseException) -> str:
    """The error as a user is told it: ours speak for themselves, of others the kind says more than the text."""
    return str(error) if isinstance(error, ValueError | RuntimeError) else describe(error)
