"""Benchmarks A and B of the core: what a round costs beside bare forward and backward, and what a million clients cost.

    python benchmarks/core.py a       # MLP 784-200-200-10, 100 clients x 600, 10 per round, K = 10, batch 32
    python benchmarks/core.py b       # 1,000 against 1,000,000 registered clients, scaffold, client memory on disk

All figures are ratios of times taken in turns in one run: in A every round is followed by bare forward and backward on the
same batches, so that a slow spell of the machine slows both. Several passes; the median and the extremes are printed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn

import fedkeel as fk
from fedkeel.engine import seeding
from fedkeel.engine.auto import cores
from fedkeel.engine.memory import keep_freed_memory

CLIENTS, SAMPLES, COHORT, K, BATCH = 100, 600, 10, 10, 32


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def federation() -> fk.Federation:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(CLIENTS * SAMPLES, 784)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, size=CLIENTS * SAMPLES))
    return fk.Federation(x, y, np.arange(CLIENTS + 1) * SAMPLES)


def bare(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Seconds for forward and backward over a round's batches, and nothing else."""
    with torch.enable_grad():
        start = time.perf_counter()
        for x, y in batches:
            for p in model.parameters():
                p.grad = None
            nn.functional.cross_entropy(model(x), y).backward()
        return time.perf_counter() - start


def batches_of(fed: fk.Federation, t: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The mini-batches that the clients of round t see, as tensors."""
    found = []
    for client in seeding.sample(0, t, CLIENTS, COHORT):
        numbers, _ = seeding.batch_order(seeding.generator(0, seeding.BATCHES, t, client), SAMPLES, K, BATCH)
        x, y = fed.take(client, numbers)
        found += list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    return found


def against_bare(
    fed: fk.Federation, algorithm: str, engine: str, batches: dict[int, list[tuple[torch.Tensor, torch.Tensor]]]
) -> tuple[list[float], str]:
    """Seconds of each late round over those of bare forward and backward on its batches, taken right after it."""
    model, ratios = net(), []

    def follow(row: dict[str, object]) -> None:
        if row["round"] in batches:
            ratios.append(row["seconds"] / bare(model, batches[row["round"]]))  # type: ignore[operator, index]

    run = fk.train(
        net, fed, algorithm, rounds=max(batches) + 1, cohort=COHORT, local_steps=K, batch_size=BATCH, engine=engine,
        progress=follow,
    )  # fmt: skip
    return ratios, run.engine


def benchmark_a(passes: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    fed = federation()
    batches = {t: batches_of(fed, t) for t in range(16, 32)}  # by then most clients have their memory
    times: dict[str, list[float]] = {}
    for _ in range(passes):
        for name in ("fedavg", "fedlada", "fadamgt", "padamfed", "gradma-w"):
            ratios, _ = against_bare(fed, name, "sequential", batches)
            times.setdefault(name, []).append(statistics.median(ratios))
        ratios, chosen = against_bare(fed, "fedavg", "auto", batches)
        times.setdefault("auto", []).append(statistics.median(ratios))
    print(f"per round, one thread; auto chose {chosen} on {cores()} cores; {passes} passes in turns")
    print(f"{'ratio':44} {'median':>7} {'lowest':>7} {'highest':>7}   target")
    report("fedavg / bare forward+backward", times["fedavg"], [1.0] * passes, "<= 1.10")
    for name in ("fedlada", "fadamgt", "padamfed"):
        report(f"{name} / fedavg", times[name], times["fedavg"], "<= 1.5")
    report("gradma-w / fedavg", times["gradma-w"], times["fedavg"], "<= 3.3")
    report(f"fedavg sequential / auto ({chosen})", times["fedavg"], times["auto"], ">= 1.7")


def report(name: str, a: list[float], b: list[float], target: str) -> None:
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    print(f"{name:44} {statistics.median(ratios):7.2f} {ratios[0]:7.2f} {ratios[-1]:7.2f}   {target}")


def one_scale(N: int) -> None:
    """Scaffold with N registered clients of 10 samples; prints the median seconds per round and the peak memory."""
    x = torch.randn(N * 10, 64)
    y = torch.randint(0, 10, (N * 10,))
    fed = fk.Federation(x, y, np.arange(N + 1) * 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = fk.train(
        lambda: nn.Linear(64, 10), fed, "scaffold", rounds=40, cohort=100, local_steps=5, batch_size=5,
        engine="sequential", store="disk", progress=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(statistics.median(row["seconds"] for row in run.history[5:]), (after - before) / 1e6)


def benchmark_b(passes: int) -> None:
    small, large, memory = [], [], []
    for _ in range(passes):
        for N, times in ((1_000, small), (1_000_000, large)):
            told = subprocess.run([sys.executable, __file__, "scale", str(N)], capture_output=True, text=True, check=True)
            seconds, gigabytes = map(float, told.stdout.split())
            times.append(seconds)
            if N > 1_000:
                memory.append(gigabytes)
    print(f"scaffold, logistic regression, 100 per round, client memory on disk; {passes} passes in turns")
    report("round with 1,000,000 clients / with 1,000", large, small, "<= 1.2")
    print(f"peak memory beyond the data, 1,000,000 clients: {max(memory):.2f} GB   target <= 1.5 GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("a", "b", "scale"))
    parser.add_argument("number", nargs="?", type=int, help="passes, or clients for `scale`")
    chosen = parser.parse_args()
    if chosen.what == "scale":
        one_scale(chosen.number)
    else:
        {"a": benchmark_a, "b": benchmark_b}[chosen.what](chosen.number or {"a": 7, "b": 3}[chosen.what])
