"""(h) How cost grows: registered clients N, parameters d, participants S, and GradMA's memory m.

Every point is a separate process, so that its peak memory can be read:  python growth.py WHAT POINT [METHOD]
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

Row = dict[str, Any]
# what -> (points, methods). For N whole rounds are timed, for the others the server step alone
POINTS = {
    "N": ((100, 1_000, 10_000, 100_000, 1_000_000), ("scaffold",)),
    "d": ((1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000), ("fedavg", "fedadam")),
    "S": ((1, 10, 100, 1_000), ("fedavg", "fedadam")),
    "m": ((10, 100, 1_000), ("gradma",)),
}
SERVER = {"d": {"S": 4, "m": 0}, "S": {"d": 100_000, "m": 0}, "m": {"d": 100_000, "S": 10}}  # the sizes that stay fixed
LONG_ENOUGH = 0.3  # seconds of repetitions of a server step


def peak() -> int:
    """The peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rounds(N: int) -> Row:
    """Scaffold on logistic regression, 100 of N clients per round, their memory on disk."""
    import numpy as np
    import torch
    from torch import nn

    import fedkeel as fk

    fed = fk.Federation(torch.randn(N * 10, 64), torch.randint(0, 10, (N * 10,)), np.arange(N + 1) * 10)
    before = peak()
    run = fk.train(
        lambda: nn.Linear(64, 10), fed, "scaffold", rounds=30, cohort=100, local_steps=5, batch_size=5,
        engine="sequential", store="disk", evaluate_every=0, progress=False,
    )  # fmt: skip
    return {"seconds": [row["seconds"] for row in run.history[5:]], "memory": peak() - before}


def server_step(method: str, d: int, S: int, m: int) -> Row:
    """The server's part of a round, on prepared uploads."""
    import torch

    from fedkeel.core.algorithm import Plan, make
    from fedkeel.core.flat import Layers
    from fedkeel.core.records import trial_upload
    from fedkeel.core.round import Round
    from fedkeel.engine.machine import keep_freed_memory

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_freed_memory()
    options = {"memory": m} if method == "gradma" else {}
    algo = make(method, **options).plan(Plan(N=10 * max(S, m), S=S, K=10, T=100))
    server, _ = algo.init(torch.zeros(d))
    form = trial_upload(algo, "client", Layers([4]), torch.float32)
    up = type(form)(*(torch.empty(S, d).uniform_(-1, 1) for _ in form))
    even = torch.full((S,), 1 / S, dtype=torch.float64)
    seconds: list[float] = []
    before = peak()
    for t in range(10_000):
        ids = torch.arange(S) + t * S % (10 * max(S, m) - S + 1)
        facts = Round(t, 10 * max(S, m), ids, even * 10 * S, even, even / 10, SimpleNamespace())
        given = (
            type(up)(*(z.roll(t, -1) for z in up)) if m else up
        )  # otherwise GradMA would remember the same uploads again and again
        start = time.perf_counter()
        server = algo.server(server, given, facts)
        seconds.append(time.perf_counter() - start)
        if t > m // S + 3 and sum(seconds[m // S :]) > LONG_ENOUGH:
            break
    return {"seconds": seconds[m // S + 1 :], "memory": peak() - before, "uploads": S * d * 4}


def point(what: str, value: int, method: str) -> Row:
    return rounds(value) if what == "N" else server_step(method, **SERVER[what], **{what: value})


def growth(passes: int, step: Callable[[str], None]) -> Iterator[Row]:
    for number in range(passes):
        for what, value, method in places():
            step(f"pass {number + 1} of {passes}: {what} = {value:,}, {method}")
            command = [sys.executable, __file__, what, str(value), method]
            ended = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            row = {"section": "h", "who": f"{what} {method}", "what": what, "point": value, "pass": number}
            if ended.returncode:
                yield row | {"missing": (ended.stderr.strip().splitlines() or ["no reason given"])[-1]}
            else:
                yield row | json.loads(ended.stdout)


def places() -> list[tuple[str, int, str]]:
    return [(what, value, name) for what, (points, names) in POINTS.items() for name in names for value in points]


# The table ------------------------------------------------------------------------------------------------------------

UNIT = {"N": "a round", "d": "a server step, per parameter", "S": "a server step, per client", "m": "a server step, per row"}
# (what, from, to) -> the most that the cost of a unit may grow. Sizes that fit into a cache are left out
TARGETS = {("N", 1_000, 1_000_000): 1.2, ("d", 10_000_000, 100_000_000): 1.2, ("S", 100, 1_000): 1.2}


def section(rows: list[Row]) -> str:
    from table import HEAD

    good = [row for row in rows if "seconds" in row]
    parts = ["## (h) Growth", "", "Cost at one size over cost at another, both in the same pass.", "", HEAD]
    parts += [str(line) for line in lines(good)]
    parts += ["", "| peak memory beyond the data | lowest | highest |", "|---|---|---|"]
    parts += memory_lines(good)
    parts += ["", *(f"- {row['who']} at {row['point']:,}: {row['missing']}" for row in rows if "missing" in row)]
    return "\n".join(parts).rstrip() + "\n"


def lines(rows: list[Row]) -> Iterator[Any]:
    from table import Line

    cost = {
        (row["who"], row["point"], row["pass"]): min(row["seconds"]) / (1 if row["what"] == "N" else row["point"])
        for row in rows
    }
    for what, (points, names) in POINTS.items():
        wanted = list(itertools.pairwise(points))
        wanted += [(a, b) for key, a, b in TARGETS if key == what and (a, b) not in wanted]
        for name in names:
            for a, b in wanted:
                who = f"{what} {name}"
                ratios = [z / cost[who, a, p] for (w, q, p), z in cost.items() if (w, q) == (who, b) and (who, a, p) in cost]
                if ratios:
                    target = f"<= {TARGETS[what, a, b]}" if (what, a, b) in TARGETS else ""
                    yield Line(f"{UNIT[what]}: {name}, {what} = {b:,} / {what} = {a:,}", ratios, target)


def memory_lines(rows: list[Row]) -> Iterator[str]:
    for what, (points, names) in POINTS.items():
        for name in names:
            for value in (points[0], points[-1]):
                mine = [row for row in rows if row["who"] == f"{what} {name}" and row["point"] == value]
                if not mine:
                    continue
                if what == "N":
                    amounts, unit = [row["memory"] / 2**20 for row in mine], "MB"
                else:
                    amounts, unit = [row["memory"] / row["uploads"] for row in mine], "x the uploads"
                yield f"| {name}, {what} = {value:,} | {min(amounts):.2f} {unit} | {max(amounts):.2f} {unit} |"


if __name__ == "__main__":
    print(json.dumps(point(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
