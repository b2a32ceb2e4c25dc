"""A word with the allocator."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def keep_freed_memory() -> None:
    """Asks glibc to keep freed blocks. By default it returns large ones to the kernel after every operation, and
    the page faults of the next one cost more than the arithmetic."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in ((-3, 1 << 30), (-1, 1 << 30), (-2, 1 << 26)):  # mmap threshold, trim threshold, top pad
                mallopt(option, value)
