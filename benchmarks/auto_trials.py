"""How well `engine="auto"` chooses: python benchmarks/auto_trials.py [TRIALS]

Every trial takes a task, lets `auto` choose for a run of 1,000 rounds with an empty memory of older measurements, and
then times rounds of every engine in turns. The ratio is the time of the chosen engine over that of the fastest. Every second
trial runs beside programs that keep all cores busy. `auto` takes an engine with other bits only if it is 1.25 times
faster, so the table also compares with the engines that have the bits of `sequential`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import fedkeel as fk
from fedkeel.engine.machine import cores
from fedkeel.engine.runners import auto
from fedkeel.models import make_model

TURNS = 3
# name -> (widths of a dense network, or the name of a model; clients, samples of a client, cohort, local steps, batch)
TASKS: dict[str, tuple[Any, int, int, int, int, int]] = {
    "dense 64-32-10": ((64, 32, 10), 200, 20, 10, 10, 10),
    "dense 200-100-10": ((200, 100, 10), 100, 60, 20, 5, 20),
    "dense 784-200-200-10": ((784, 200, 200, 10), 50, 100, 10, 10, 32),
    "logistic 50-2": ((50, 2), 500, 20, 50, 5, 10),
    "LeNet-5": ("lenet5", 20, 64, 6, 3, 32),
}


class ChosenError(Exception):
    """Stops a run as soon as `auto` has chosen."""


def make(task: tuple[Any, ...]) -> tuple[nn.Module, fk.Federation]:
    torch.manual_seed(0)
    widths, clients, samples, *_ = task
    n, offsets = clients * samples, np.arange(clients + 1) * samples
    if isinstance(widths, str):
        model, x = make_model(widths, (3, 32, 32), 10), torch.randn(n, 3, 32, 32)
    else:
        layers = [z for a, b in itertools.pairwise(widths) for z in (nn.Linear(a, b), nn.ReLU())]
        model, x = nn.Sequential(*layers[:-1]), torch.randn(n, widths[0])
    return model, fk.Federation(x, torch.randint(0, 2, (n,)), offsets)


def train(model: nn.Module, fed: fk.Federation, task: tuple[Any, ...], engine: str, rounds: int) -> list[dict[str, Any]]:
    sizes = dict(zip(("cohort", "local_steps", "batch_size"), task[3:], strict=True))
    method = fk.algorithm("fedavg", lr=0.01)
    return fk.train(model, fed, method, rounds=rounds, engine=engine, evaluate_every=0, progress=False, **sizes).history


def choice(model: nn.Module, fed: fk.Federation, task: tuple[Any, ...]) -> str:
    """What `auto` chooses for a run of 1,000 rounds."""
    chosen, choose = [], auto.choose

    def stop(*facts: Any) -> tuple[str, str]:
        chosen.append(choose(*facts)[0])
        raise ChosenError

    auto.choose = stop
    with tempfile.TemporaryDirectory() as cache, contextlib.suppress(ChosenError):
        os.environ["FEDKEEL_CACHE"] = cache
        try:
            train(model, fed, task, "auto", 1000)
        finally:
            auto.choose = choose
    return chosen[0]


@contextlib.contextmanager
def load(programs: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"]) for _ in range(programs)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def seconds(model: nn.Module, fed: fk.Federation, task: tuple[Any, ...], dense: bool) -> dict[str, float]:
    """Engine -> seconds of its fastest round. The engines take turns."""
    engines = ["sequential", "processes", *(["vectorized"] if dense else [])]
    best = dict.fromkeys(engines, float("inf"))
    for _ in range(TURNS):
        for engine in engines:
            rows = train(model, fed, task, engine, 12)
            best[engine] = min(best[engine], *(row["seconds"] for row in rows[2:]))
    return best


def main(trials: int) -> None:
    worst = 0.0
    print("| trial | task | beside a load | chosen | over the fastest engine | over the fastest with equal bits |")
    print("|---|---|---|---|---|---|")
    for number in range(trials):
        name = list(TASKS)[number // 2 % len(TASKS)]
        task, loaded = TASKS[name], number % 2 == 1
        model, fed = make(task)
        with load(cores() if loaded else 0):
            chosen = choice(model, fed, task)
        times = seconds(model, fed, task, not isinstance(task[0], str))
        known = "vectorized" if chosen == "compiled" else chosen
        ratio = times[known] / min(times.values())
        equal = times[known] / min(times["sequential"], times["processes"])
        worst = max(worst, ratio)
        print(f"| {number} | {name} | {'yes' if loaded else 'no'} | {chosen} | {ratio:.2f} | {equal:.2f} |", flush=True)
    print(f"\nThe worst choice takes {worst:.2f} times as long as the fastest engine.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
