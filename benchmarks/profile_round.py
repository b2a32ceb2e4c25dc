"""Where the time of a round of the bench's workload (a) goes: results/profile.md.

    python benchmarks/profile_round.py                 # two workers, and every method: some 5 minutes
    python benchmarks/profile_round.py fed-lamb moon   # two workers, and these methods

The script measures the time in a few functions of fedkeel. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from multiprocessing import RawArray
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent / "bench"))
from workloads import WORKLOADS

import fedkeel as fk
import methods
from fedkeel.core.dense_gradients import Dense
from fedkeel.core.steps import OneClient, OneGrad
from fedkeel.engine.client_work import ClientWork
from fedkeel.engine.runners.processes import Processes

PAGE = Path(__file__).parents[1] / "results" / "profile.md"
W = WORKLOADS["a"]
PLACES = {
    "gradients": [(Dense, "gradient"), (OneClient, "backward")],
    "losses": [(OneGrad, "_loss_of_batch")],
    "clients": [(ClientWork, "run_client")],
}
SKIP, ROUNDS = 5, 60  # rounds of warm-up; rounds of a run with two workers


def two_workers(fed: fk.Federation) -> str:
    """The parts of a round as shares of its time: medians over the rounds."""
    begun = np.frombuffer(RawArray("d", 2 * W.cohort)).reshape(W.cohort, 2)  # and ended, of every client of the round
    work_on, run = Processes._run_client, Processes.run
    rounds: list[tuple[float, float, np.ndarray]] = []

    def timed_work(self: Processes, task: Any, samples: Any) -> str | None:
        start = time.perf_counter()
        fault = work_on(self, task, samples)
        begun[task.task.position] = start, time.perf_counter()
        return fault

    def timed_run(self: Processes, jobs: Any) -> Any:
        start = time.perf_counter()
        uploads = run(self, jobs)
        rounds.append((start, time.perf_counter(), begun.copy()))
        return uploads

    def train(engine: str, **options: Any) -> list[float]:
        found = fk.train(
            W.module, fed, fk.algorithm("fedavg"), rounds=ROUNDS, cohort=W.cohort, local_steps=W.steps, batch_size=W.batch,
            engine=engine, evaluate_every=0, progress=lambda row: None, **options,
        )  # fmt: skip
        return [row["seconds"] for row in found.history][SKIP:]

    Processes._run_client, Processes.run = timed_work, timed_run  # type: ignore[method-assign]
    try:
        alone, together = train("sequential"), train("processes", workers=2)
    finally:
        Processes._run_client, Processes.run = work_on, run  # type: ignore[method-assign]
    parts: dict[str, list[float]] = {}
    for (start, end, seen), (after, *_) in zip(rounds[SKIP:], rounds[SKIP + 1 :], strict=False):
        whole, busy, span = after - start, (seen[:, 1] - seen[:, 0]).sum() / 2, seen[:, 1].max() - seen[:, 0].min()
        shares = {
            "a worker runs clients (mean of the two)": busy,
            "a worker waits for the other's last client, or for its next one (mean)": span - busy,
            "from the driver's call to the first client, from the last one to its return": end - start - span,
            "the server's step, the history, the next round's sampling": after - end,
        }
        for name, seconds in shares.items():
            parts.setdefault(name, []).append(float(seconds) / whole)
    lines = ["## A round of two workers", "", "| part | share of the round, median |", "|---|---|"]
    lines += [f"| {name} | {median(values):.1%} |" for name, values in parts.items()]
    slower = mean(median(seen[:, 1] - seen[:, 0]) for _, _, seen in rounds[SKIP:]) * W.cohort / median(alone)
    lines += [
        "",
        f"One core without workers took {median(alone) / median(together):.2f} times as long by median rounds, "
        f"{min(alone) / min(together):.2f} times by fastest ones. A client takes {slower:.2f} times as long in a worker "
        "beside another as its part of a round on one core, the server's part included.",
    ]
    return "\n".join(lines)


class Clocks:
    """Seconds spent in functions of fedkeel since the last `read`."""

    def __enter__(self) -> Clocks:
        self.seconds = dict.fromkeys(PLACES, 0.0)
        self.kept = {place: getattr(*place) for places in PLACES.values() for place in places}
        for name, places in PLACES.items():
            for place in places:
                setattr(*place, self._timed(name, self.kept[place]))
        return self

    def __exit__(self, *_: Any) -> None:
        for place, function in self.kept.items():
            setattr(*place, function)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed

    def read(self) -> dict[str, float]:
        found, self.seconds = self.seconds, dict.fromkeys(PLACES, 0.0)
        return found


def parts_of(fed: fk.Federation, name: str) -> dict[str, float]:
    """Seconds of the parts of a method's fastest round."""
    rounds: list[dict[str, float]] = []
    with Clocks() as clocks:
        methods.run(fed, name, SKIP + 2 * methods.ROUNDS, lambda row: rounds.append(clocks.read() | {"all": row["seconds"]}))
    return min(rounds[SKIP:], key=lambda parts: parts["all"])


def by_method(fed: fk.Federation, names: list[str]) -> str:
    """What each method takes, in units of fedavg's gradients of a round."""
    head = ["all", "gradients, own terms included", "losses", "the rest of the clients' steps", "the server and the engine"]
    lines = [
        "## Methods",
        "",
        "Fastest rounds on one thread; 1 is the time of fedavg's gradients of a round, taken just before.",
        "",
    ]
    lines += ["| method | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name in track(names):
        unit, parts = parts_of(fed, "fedavg")["gradients"], parts_of(fed, name)
        rest = parts["clients"] - parts["gradients"] - parts["losses"]
        values = [parts["all"], parts["gradients"], parts["losses"], rest, parts["all"] - parts["clients"]]
        lines.append(f"| {name} | " + " | ".join(f"{value / unit:.2f}" for value in values) + " |")
    return "\n".join(lines)


def main() -> None:
    names = sys.argv[1:] or fk.algorithms()
    fed = methods.federation()
    top = "# Where a round goes\n\nWritten by `python benchmarks/profile_round.py`; do not edit. Workload (a) of bench.md."
    PAGE.write_text("\n\n".join([top, two_workers(fed), by_method(fed, names)]) + "\n")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
