"""How a contestant is timed: it calls `tick` after every round, in its own loop or in a callback of its framework.

The first rounds warm up. Then the process says that it is ready, and waits on its standard input for the number of
rounds of a pass, which it answers with the seconds of each. So contestants stay alive and take turns.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

WARM_UP = 3  # rounds
LONG = 2.0  # seconds; a round that takes longer is timed once only when threads are chosen


class Clock:
    def __init__(self, warm_up: int = WARM_UP) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the benchmark, however that ends
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints goes to the log
        self.left, self.seconds, self.facts = warm_up, [], {}
        self.warm = False
        self.start = time.perf_counter()

    def tell(self, **facts: Any) -> None:
        """Facts for the table: how many threads, which engine."""
        self.facts |= facts

    def tick(self) -> None:
        self.seconds.append(time.perf_counter() - self.start)
        self.left -= 1
        if self.left <= 0:
            self._answer({"seconds": self.seconds} if self.warm else {"ready": True, **self.facts})
            self.warm, self.seconds, self.left = True, [], self._next()
        self.start = time.perf_counter()

    def _answer(self, line: dict[str, Any]) -> None:
        self.answers.write(json.dumps(line) + "\n")
        self.answers.flush()

    def _next(self) -> int:
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)  # also from inside a framework that would catch SystemExit
        return int(line)


def faster_threads(round_: Any, clock: Clock) -> None:
    """Lets torch have one thread or all of them, whichever makes a round faster here."""
    import torch

    spent = {}
    for threads in (len(os.sched_getaffinity(0)), 1):
        torch.set_num_threads(threads)
        spent[threads] = _seconds(round_)
        if spent[threads] < LONG:  # the first round includes set-up
            spent[threads] = _seconds(round_)
    threads = min(spent, key=lambda n: spent[n])
    torch.set_num_threads(threads)
    clock.tell(threads=threads)


def _seconds(round_: Any) -> float:
    start = time.perf_counter()
    round_()
    return time.perf_counter() - start
