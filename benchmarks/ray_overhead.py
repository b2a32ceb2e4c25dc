"""What Ray adds to a round: MLP 784-200-200-10, 100 clients x 600, 10 per round, K = 10, batch 32, two workers.

    python benchmarks/ray_overhead.py [passes]

Overhead is the part of a round in which the two workers do not run clients, by their clocks: messages there and back, one
worker that waits for the other, and the driver's server step. Both times come from the same round, so a busy moment of a
shared machine affects both. Clients may also run slower in Ray's workers. The ratio of the fastest round to half of the
fastest round of `sequential` shows that, but only on a quiet machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import fedkeel as fk

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from methods import W, federation

ROUNDS, WORKERS, SKIP = 200, 2, 80  # in the first seconds Ray's processes are still starting


def measure(engine: str) -> dict[str, Any]:
    """Seconds of the fastest round, and for every later round the share in which workers were idle."""
    busy: list[float] = []  # seconds of a round's calls
    shares: list[float] = []
    if engine == "ray":
        listen(busy)

    def mark(row: dict[str, Any]) -> None:
        shares.append(1 - sum(busy) / WORKERS / row["seconds"])
        busy.clear()

    run = fk.train(
        W.module, federation(), "fedavg", rounds=ROUNDS, cohort=W.cohort, local_steps=W.steps, batch_size=W.batch,
        engine=engine, workers=WORKERS, evaluate_every=0, progress=mark,
    )  # fmt: skip
    seconds = [row["seconds"] for row in run.history[SKIP:]]
    return {"fastest": min(seconds), "median": statistics.median(seconds), "shares": shares[SKIP:]}


def listen(busy: list[float]) -> None:
    """Records the seconds that workers report for a call."""
    from fedkeel.engine.runners import ray as engine

    get = engine.ray.get

    def get_and_note(answer: Any) -> Any:
        result = get(answer)
        busy.append(getattr(result, "seconds", 0.0))
        return result

    engine.ray.get = get_and_note


def main(passes: int) -> None:
    overheads = []
    for _ in range(passes):
        found = {}
        for engine in ("sequential", "processes", "ray"):
            command = [sys.executable, __file__, engine]
            found[engine] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        part = statistics.quantiles(found["ray"]["shares"], n=10)
        overheads.append(part[4])
        print(f"overhead of a round on ray: median {part[4]:.0%}, nine of ten rounds below {part[8]:.0%}", flush=True)
        half, fastest = found["sequential"]["fastest"] / WORKERS, found["ray"]["fastest"]
        print(f"  its fastest round: {fastest * 1e3:.1f} ms, {fastest / half:.2f} times half of sequential's", flush=True)
        added = {key: 1 - found["processes"][key] / found["ray"][key] for key in ("fastest", "median")}
        print(f"  more than `processes`: {added['median']:.0%} of the median round, {added['fastest']:.0%} of the fastest")
    print(f"overhead: {min(overheads):.0%} to {max(overheads):.0%} in {passes} passes (target: below 30 %)")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "3"
    if what.isdigit():
        main(int(what))
    else:
        print(json.dumps(measure(what)))
