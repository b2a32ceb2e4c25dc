"""(i) Memory of a round with S = 10 to 1,000 participants, and with 10 million parameters.

Every point is a process of its own:  python memory.py METHOD ENGINE WIDTH S
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
INPUTS, CLIENTS, SAMPLES = 784, 1_000, 4
MILLION = 1258  # hidden units: 1.0 million parameters
METHODS, ENGINES, COHORTS = ("fedavg", "scaffold"), ("sequential", "processes"), (10, 100, 1_000)
# (method, engine, hidden units, S); scaffold keeps a record per client, so its model is smaller
POINTS = [
    (method, engine, width, S)
    for method, width in (("fedavg", MILLION), ("scaffold", MILLION // 5))
    for engine in ENGINES
    for S in COHORTS
] + [("fedavg", engine, 10 * MILLION, 10) for engine in ENGINES]
PAUSE = 0.005  # seconds between two looks at the memory


def held() -> int:
    """Bytes that this process and its children hold. Pages that several of them share count once."""
    total = 0
    for pid in [os.getpid(), *_children()]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
        except (OSError, StopIteration):  # it has just ended
            continue
    return total


def _children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


class Peak:
    """The most memory that is held while the block runs."""

    def __enter__(self) -> Peak:
        self.most, self.over = held(), threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.over.wait(PAUSE):
            self.most = max(self.most, held())

    def __exit__(self, *error: Any) -> None:
        self.over.set()
        self.thread.join()


def rounds(method: str, engine: str, width: int, S: int) -> Row:
    import numpy as np
    import torch
    from torch import nn

    import fedkeel as fk
    from fedkeel.core.algorithm import Plan
    from fedkeel.core.flat import Layers
    from fedkeel.core.records import trial_upload
    from fedkeel.engine.machine import cores

    n = CLIENTS * SAMPLES
    fed = fk.Federation(torch.randn(n, INPUTS), torch.randint(0, 10, (n,)), np.arange(CLIENTS + 1) * SAMPLES)
    model = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, 10))
    algo = fk.algorithm(method)
    options: Row = {"local_steps": 1, "batch_size": SAMPLES, "evaluate_every": 0, "progress": False, "engine": engine}
    fk.train(nn.Linear(INPUTS, 10), fed, method, rounds=1, cohort=2, **options)  # loads what is loaded on first use
    d = sum(p.numel() for p in model.parameters())
    with Peak() as peak:
        before, start = peak.most, time.perf_counter()
        run = fk.train(model, fed, algo, rounds=2, cohort=S, **options)
        seconds = time.perf_counter() - start
    fields = len(trial_upload(algo.plan(Plan(N=1, S=1, K=1.0, T=1)), "client", Layers([2]), torch.float32))
    kept = [record for record in run.clients.values() if record is not None]
    per_client = sum(z.numel() for z in kept[0]) if kept else 0
    again = {client for client in range(CLIENTS)} if S == CLIENTS else set()
    facts = {"d": d, "fields": fields, "workers": cores() if engine == "processes" else 1, "seconds": seconds}
    return facts | {"memory": peak.most - before, "records": 4 * per_client * (len(kept) + len(again))}


if __name__ == "__main__":
    print(json.dumps(rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
