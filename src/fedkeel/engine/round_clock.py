"""The virtual time of rounds: who is late, and when a round ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedkeel.engine.client_work import Exchange
from fedkeel.engine.pace import Pace


class RoundClock:
    """Counts virtual seconds. A round begins when the one before it ends."""

    def __init__(self, pace: Pace, deadline: float | None) -> None:
        self.pace, self.deadline = pace, math.inf if deadline is None else deadline
        self.now = 0.0

    def round(self, exchange: Exchange, surveys: bool, wanted: int) -> tuple[list[int], dict[str, Any]]:
        """Lets a round pass. Returns the positions of the clients that are in time, and columns of the history.

        exchange: all clients that were selected.  surveys: does the round begin with a survey?  wanted: the round ends as
        soon as this number of clients has answered, and at the deadline at the latest.
        """
        seconds = self.pace.seconds(exchange, "client") + (self.pace.seconds(exchange, "survey") if surveys else 0.0)
        order = np.argsort(seconds, kind="stable")
        first = [int(position) for position in order[:wanted] if seconds[position] <= self.deadline]
        all_there = len(first) == min(wanted, len(order))
        length = float(seconds[first[-1]]) if all_there and first else self.deadline
        began, self.now = self.now, self.now + length
        in_time = sorted(first)
        work = [
            [client, began, began + min(float(mine), length), position in set(in_time)]
            for position, (client, mine) in enumerate(zip(exchange.ids, seconds, strict=True))
        ]
        return in_time, {"clock_seconds": self.now, "late": len(order) - len(in_time), "timeline": work}
