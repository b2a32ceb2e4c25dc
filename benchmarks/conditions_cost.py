"""What conditions cost: CPU time of a round with each of them, compared with off. Writes results/conditions/cost.md.

    python benchmarks/conditions_cost.py

Contestants take turns, one run of eight rounds each, in several passes. A ratio compares the median rounds of one pass.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedkeel as fk

RESULT, PASSES, TARGET = Path("results/conditions/cost.md"), 6, 1.2
CASES: dict[str, dict[str, Any]] = {
    "off": {},
    "off, again": {},
    "topk:0.01": {"uplink": "topk:0.01"},
    "quantize:8": {"uplink": "quantize:8"},
    "topk:0.01+quantize:8": {"uplink": "topk:0.01+quantize:8"},
    "privacy": {"privacy": "gaussian:clip=1,noise=1"},
    "median": {"aggregation": "median"},
    "multi-krum": {"aggregation": "multi-krum:0.2"},
    "local privacy": {"privacy": "gaussian:clip=1,noise=1,where=client"},
    "downlink quantize:8": {"downlink": "quantize:8"},
    "markov": {"participation": "markov:on=1,off=0"},
    "phones": {"clock": "phones"},
}
MUST = ("topk:0.01", "quantize:8", "privacy", "median")


def model() -> torch.nn.Module:
    layers = [
        torch.nn.Linear(784, 200),
        torch.nn.ReLU(),
        torch.nn.Linear(200, 200),
        torch.nn.ReLU(),
        torch.nn.Linear(200, 10),
    ]
    return torch.nn.Sequential(*layers)


def round_seconds(fed: fk.Federation, conditions: dict[str, Any]) -> float:
    """CPU seconds of a round, without the first two."""
    moments: list[float] = []
    common = {"rounds": 8, "cohort": 10, "local_steps": 10, "batch_size": 32, "engine": "sequential", "evaluate_every": 0}
    watch = lambda row, state: moments.append(time.process_time())  # noqa: E731
    fk.train(model, fed, "fedavg", **common, progress=False, callbacks=[watch], **conditions)
    return statistics.median(np.diff(moments)[1:])


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    fed = fk.Federation.from_arrays([(rng.normal(size=(600, 784)).astype("f"), rng.integers(0, 10, 600)) for _ in range(20)])
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(PASSES):
        for name, conditions in CASES.items():
            seconds[name].append(round_seconds(fed, conditions))
    lines = ["| condition | median | lowest | highest | target |", "|---|---|---|---|---|"]
    for name, mine in seconds.items():
        ratios = [one / off for one, off in zip(mine, seconds["off"], strict=True)]
        median = statistics.median(ratios)
        target = (f"<= {TARGET}: " + ("met" if median <= TARGET else "**missed**")) if name in MUST else ""
        lines.append(f"| {name} | {median:.2f} | {min(ratios):.2f} | {max(ratios):.2f} | {target} |")
    RESULT.write_text(
        "# What conditions cost\n\nWritten by `python benchmarks/conditions_cost.py`; do not edit. CPU time of a round of "
        "fedavg with a condition, divided by that of a round without: MLP 784-200-200-10 on random numbers, 10 clients a "
        f"round, K = 10, batch 32, one thread, {PASSES} passes in turns.\n\n" + "\n".join(lines) + "\n"
    )
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
