"""A run of a study in its directory, on a node of a cluster that sees the directory."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import fedkeel.runs.from_config as from_config
from fedkeel.errors import Busy
from fedkeel.runs.config import RunConfig

if TYPE_CHECKING:
    from fedkeel.data.federation import Federation

# Seconds to wait for the lock of a process whose node died. A network file system may release it late.
LOCK_WAIT = 120.0


def data_of(config: RunConfig, has_test: bool) -> Federation | None:
    """None: the run loads its data itself. A trial of a search gets them without the test samples."""
    return None if has_test else dataclasses.replace(from_config.federation(config), test=None)


def train_in_place(config: RunConfig, out: Path, fresh: bool, has_test: bool) -> None:
    """One run in its directory. A process of a dead node may hold the lock for a while, so this tries again."""
    fed, end = data_of(config, has_test), time.monotonic() + LOCK_WAIT
    while True:
        try:
            from_config.train(config, out, resume=True, progress=False, fresh=fresh, fed=fed)
            return
        except Busy:
            if time.monotonic() > end:
                raise
            time.sleep(1.0)
