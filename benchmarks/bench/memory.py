"""(i) Memory of a round with S = 10 to 1,000 participants, and with 10 million parameters.

Every point is a process of its own:  python memory.py METHOD ENGINE WIDTH S
"""

from __future__ import annotations

import json
import os
import statistics
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
COHORTS = (10, 100, 1_000)
# (method, engine, hidden units, S). Scaffold also keeps a record for every client, so its model is smaller.
POINTS = [
    *(("fedavg", engine, MILLION, S) for engine in ("sequential", "processes") for S in COHORTS),
    *(("scaffold", engine, MILLION // 5, S) for engine in ("sequential", "processes") for S in COHORTS),
    *(("fedavg", engine, 10 * MILLION, 10) for engine in ("sequential", "processes")),
]
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
    options: Row = {"local_steps": 1, "batch_size": SAMPLES, "evaluate_every": 0, "progress": False, "engine": engine}
    fk.train(nn.Linear(INPUTS, 10), fed, method, rounds=1, cohort=2, **options)  # loads what is loaded on first use
    d = sum(p.numel() for p in model.parameters())
    with Peak() as peak:
        before, start = peak.most, time.perf_counter()
        run = fk.train(model, fed, method, rounds=2, cohort=[list(range(S))] * 2, **options)
        seconds = time.perf_counter() - start
    planned = fk.algorithm(method).plan(Plan(N=1, S=1, K=1.0, T=1))
    fields = len(trial_upload(planned, "client", Layers([2]), torch.float32))
    record = run.clients[0]
    records = 0 if record is None else 2 * S * sum(z.nbytes for z in record)  # in round 1 each has an old one and a new one
    facts = {"d": d, "fields": fields, "workers": cores() if engine == "processes" else 1, "seconds": [seconds]}
    return facts | {"memory": peak.most - before, "records": records}


def memory(passes: int, step: Callable[[str], None]) -> Iterator[Row]:
    for number in range(passes):
        for method, engine, width, S in POINTS:
            step(f"pass {number + 1} of {passes}: {method}, {engine}, {width} hidden units, S = {S:,}")
            command = [sys.executable, __file__, method, engine, str(width), str(S)]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            row = {"section": "i", "who": f"{method} {engine} {width}", "S": S, "pass": number}
            if done.returncode:
                yield row | {"missing": (done.stderr.strip().splitlines() or ["no reason given"])[-1]}
            else:
                yield row | json.loads(done.stdout)


# The table ------------------------------------------------------------------------------------------------------------

INTRODUCTION = """## (i) Memory of a round

The most that all processes of a run hold together, beyond the data, the model and the clients' records. Pages that
processes share count once. The unit is one upload. Clients make one local step. Kept for the sums: at most (workers + 3)
uploads, or 32 MB if that is more. The rest is what clients and the server compute with.

| method, engine, parameters | S = 10 | S = 100 | S = 1,000 | all uploads of S = 1,000 |
|---|---|---|---|---|"""


def section(rows: list[Row]) -> str:
    good = [row for row in rows if "memory" in row]
    parts = [INTRODUCTION]
    for who in dict.fromkeys(row["who"] for row in good):
        mine = [row for row in good if row["who"] == who]
        method, engine, _ = who.split()
        cells = [f"{method}, {engine}, d = {mine[0]['d']:,}"]
        for S in COHORTS:
            found = [uploads(row) for row in mine if row["S"] == S]
            cells.append(f"{statistics.median(found):.1f}" if found else "")
        parts.append(f"| {' | '.join(cells)} | {'1000' if cells[-1] else ''} |")
    parts += ["", *(f"- {row['who']}, S = {row['S']:,}: {row['missing']}" for row in rows if "missing" in row)]
    return "\n".join(parts).rstrip() + "\n"


def uploads(row: Row) -> float:
    """The memory of a run in uploads of one client."""
    return (row["memory"] - row["records"]) / (4 * row["d"] * row["fields"])


if __name__ == "__main__":
    print(json.dumps(rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
