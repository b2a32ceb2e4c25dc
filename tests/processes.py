"""Child processes for tests that kill them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


@contextmanager
def forked(work: Callable[[], Any]) -> Iterable[Any]:
    """Calls `work` in a child process, and kills the child at the end of the block if it still runs."""

    def alone() -> None:
        torch.set_num_threads(1)  # a fork does not copy OpenMP's threads, and the child would wait for them forever
        work()

    child = multiprocessing.get_context("fork").Process(target=alone)
    child.start()
    try:
        yield child
    finally:
        kill(child)


def kill(child: Any) -> None:
    """Kills a child process and waits until it is gone."""
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join(timeout=30)


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent = _state(int(entry.name))
            if parent == pid and state not in "ZX":
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    return _state(pid)[0] not in "ZX"


def _state(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0], int(fields[1])


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Waits until the condition is true; returns its last value."""
    end = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return result
