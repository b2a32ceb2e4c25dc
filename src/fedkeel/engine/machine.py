"""The machine and the process that a run uses: versions of the packages, the processor, its cores, memory, threads.

Also a setting of the memory allocator that makes training faster.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedkeel import __version__
from fedkeel.engine import seeding

OPT_OUT = "FEDKEEL_MALLOPT"  # an environment variable; 0 leaves the allocator as it is
# Numbers of glibc's malloc.h, and our values in bytes.
ALLOCATOR_OPTIONS = {
    -3: 1 << 30,  # M_MMAP_THRESHOLD: blocks below 1 GB come from the heap, which is reused
    -1: 1 << 30,  # M_TRIM_THRESHOLD: free memory at the end of the heap is returned to the system only beyond 1 GB
    -2: 1 << 26,  # M_TOP_PAD: the heap grows by 64 MB at a time
}


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def made_with() -> dict[str, str]:
    """Versions of Python, fedkeel, torch and numpy, and the machine, for summary.json."""
    about = ""
    with contextlib.suppress(OSError):
        about = Path("/proc/cpuinfo").read_text()
    named = next((line.partition(":")[2].strip() for line in about.splitlines() if line.startswith("model name")), "")
    system = f"{platform.system()} {platform.machine()}, {named or platform.processor() or 'processor not named'}"
    packages = {"fedkeel": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {"python": platform.python_version(), **packages, "machine": system}


def peak_memory() -> float | None:
    """The most memory in MB that this process held since its start, or since `forget_peak`. Data count, worker processes do
    not. None if the system does not say."""
    if os.name != "posix":
        return None
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def forget_peak() -> None:
    """Makes `peak_memory` start again, for a process that has finished another run. Does nothing if the system cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks for the next allocation, in the whole process (docs/engines.md).

    By default glibc returns large blocks to the system after every operation. The page faults of the next operation then
    cost more than its arithmetic.
    """
    if sys.platform == "linux" and os.environ.get(OPT_OUT) != "0":
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
            mallopt = ctypes.CDLL(None).mallopt
            for option, value in ALLOCATOR_OPTIONS.items():
                mallopt(option, value)


@contextlib.contextmanager
def one_thread(*devices: torch.device) -> Iterator[None]:
    """Runs with one thread, so that every engine adds in the same order. Restores the caller's random state: that of the
    CPU, and of these devices if they are GPUs.

    Several threads may be inside. Limits and the CPU's random state belong to the process, so the last one restores them.
    """
    gpus = {number: torch.cuda.get_rng_state(number) for number in seeding.cuda_numbers(devices)}
    with seeding.GENERATORS:
        if not INSIDE.count:
            INSIDE.threads, INSIDE.random = torch.get_num_threads(), torch.get_rng_state()
            INSIDE.blas = threadpool_limits(1, user_api="blas")
        INSIDE.count += 1
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        for number, state in gpus.items():
            torch.cuda.set_rng_state(state, number)
        with seeding.GENERATORS:
            INSIDE.count -= 1
            torch.set_num_threads(INSIDE.threads)
            if not INSIDE.count:
                torch.set_rng_state(INSIDE.random)
                INSIDE.blas.restore_original_limits()


class Inside:
    """The threads inside of `one_thread`, and what the last of them restores."""

    count = 0
    threads: int
    random: Tensor
    blas: Any


INSIDE = Inside()
