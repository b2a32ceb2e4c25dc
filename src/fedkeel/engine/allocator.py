"""A setting of the C library's memory allocator that makes training faster (docs/engines.md)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

OPT_OUT = "FEDKEEL_MALLOPT"  # an environment variable; 0 leaves the allocator as it is
# Numbers of glibc's malloc.h, and our values in bytes.
OPTIONS = {
    -3: 1 << 30,  # M_MMAP_THRESHOLD: blocks below 1 GB come from the heap, which is reused
    -1: 1 << 30,  # M_TRIM_THRESHOLD: free memory at the end of the heap is returned to the system only beyond 1 GB
    -2: 1 << 26,  # M_TOP_PAD: the heap grows by 64 MB at a time
}


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks for the next allocation, in the whole process.

    By default glibc returns large blocks to the system after every operation. The page faults of the next operation then
    cost more than its arithmetic.
    """
    if sys.platform == "linux" and os.environ.get(OPT_OUT) != "0":
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in OPTIONS.items():
                mallopt(option, value)
