"""For those who fork worker processes: how a worker treats Ctrl-C, and how it ends with the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent dies


@contextlib.contextmanager
def defer_ctrl_c() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back until the block ends; fork inside of it.

    During a fork, the child would show a traceback, and the parent might miss the signal. A child that wants to ignore
    Ctrl-C can do so from its first moment.
    """
    if threading.current_thread() is not threading.main_thread():  # Python interrupts only the main thread
        yield
        return
    arrived: list[int] = []
    ends = (signal.SIGINT, signal.SIGTERM)
    before = {end: signal.signal(end, lambda number, _: arrived.append(number)) for end in ends}
    try:
        yield
    finally:
        for end, handler in before.items():  # None if a library in another language has set the handler
            signal.signal(end, signal.SIG_DFL if handler is None else handler)
        if arrived:
            signal.raise_signal(arrived[0])


def die_with(parent: int) -> None:
    """Ends this process as soon as its parent dies, even in the middle of a client.

    Otherwise it might still write to a slot of the store that a resumed run already uses. Only Linux can do this; on other
    systems the process finishes its client first.
    """
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(0)
