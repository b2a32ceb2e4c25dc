"""Runs in processes of their own, for tests that kill them."""

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
    """`work` in a child process, which is killed at the end of the block if it is still there."""

    def alone() -> None:
        torch.set_num_threads(1)  # OpenMP's threads did not come along, and it would wait for them
        work()

    child = multiprocessing.get_context("fork").Process(target=alone)
    child.start()
    try:
        yield child
    finally:
        kill(child)


def kill(child: Any) -> None:
    """SIGKILL, and wait until it has taken effect."""
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
    """Waits until the condition holds; returns what it returned last."""
    end = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return result
