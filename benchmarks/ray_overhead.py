"""What Ray adds to a round: MLP 784-200-200-10, 100 clients x 600, 10 per round, K = 10, batch 32, two workers.

    python benchmarks/ray_overhead.py [passes]

Engines take turns, since the machine may be shared, each in a process of its own; of every pass the fastest round counts.
The processor time of all processes of the run is printed, too: it depends less on who else is there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import fedkeel as fk

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from methods import W, federation

ROUNDS, WORKERS, SKIP = 45, 2, 5  # in the first rounds things start


def processor_seconds() -> dict[int, float]:
    """Of this process and of all below it."""
    parent, seconds = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parent[int(pid)] = int(fields[1])
        seconds[int(pid)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parent and ours(parent[pid]))

    return {pid: seconds[pid] for pid in parent if ours(pid)}


def measure(engine: str) -> tuple[float, float]:
    """(seconds of the fastest round, processor seconds of a mean round)."""
    marks = []

    def mark(row: dict) -> None:
        if row["round"] in (SKIP - 1, ROUNDS - 1):
            marks.append(processor_seconds())

    run = fk.train(
        W.module, federation(), "fedavg", rounds=ROUNDS, cohort=W.cohort, local_steps=W.steps, batch_size=W.batch,
        engine=engine, workers=WORKERS, progress=mark,
    )  # fmt: skip
    spent = sum(seconds - marks[0].get(pid, 0.0) for pid, seconds in marks[1].items())
    return min(row["seconds"] for row in run.history[SKIP:]), spent / (ROUNDS - SKIP)


def main(passes: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {"sequential": [], "processes": [], "ray": []}
    for _ in range(passes):
        for engine, pairs in found.items():
            told = subprocess.run([sys.executable, __file__, engine], stdout=subprocess.PIPE, text=True, check=True).stdout
            pairs.append(tuple(map(float, told.split())))
            print(f"{engine:10} {pairs[-1][0] * 1e3:7.1f} ms, processor {pairs[-1][1] * 1e3:7.1f} ms", flush=True)
    print(f"{'milliseconds per round':24} {'fastest':>8} {'median of fastest':>18} {'processor, lowest':>18}")
    for engine, pairs in found.items():
        wall, cpu = zip(*pairs, strict=True)
        print(f"{engine:24} {min(wall) * 1e3:8.1f} {statistics.median(wall) * 1e3:18.1f} {min(cpu) * 1e3:18.1f}")
    lowest = {engine: (min(wall for wall, _ in pairs), min(cpu for _, cpu in pairs)) for engine, pairs in found.items()}
    compute = lowest["sequential"][0] / WORKERS
    for engine in ("processes", "ray"):
        wall, cpu = (1 - compute / lowest[engine][0], 1 - lowest["sequential"][1] / lowest[engine][1])
        print(f"{engine}: overhead {wall:.0%} of the round's time, {cpu:.0%} of its processor time (ray's target: < 30 %)")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "3"
    if what.isdigit():
        main(int(what))
    else:
        print(*measure(what))
