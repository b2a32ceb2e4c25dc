"""Uploads that are added up as they come: the same results as if they were kept, in memory that does not grow with S."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkeel as fk
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.records import small_layers
from fedkeel.core.round import Round
from fedkeel.core.sums import Sum, Term, sums_asked
from fedkeel.engine import folding, totals
from fedkeel.engine.client_work import Exchange
from fedkeel.engine.runners import processes
from fedkeel.engine.runners.runner import Sequential
from tests.engine.test_engines import same, train
from tests.processes import children, until
from tests.tasks import small_net

ROOT = Path(__file__).parents[2]
TEXT: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": 120}
one_by_one = {"gradma", "gradma-s", "fedcams"}  # their servers remember or unpack single uploads
every = pytest.mark.parametrize("name", fk.algorithms())


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and even small uploads are added up as they come."""

    def begin() -> None:
        monkeypatch.setattr(totals, "KEEP", 0)
        monkeypatch.setattr(processes, "AHEAD", 0)
        monkeypatch.setattr(processes, "UNEQUAL", 1)

    return begin


@every
def test_sums_have_the_bits_of_kept_uploads(name: str, summed: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {} if fk.algorithm(name).facts.uniform else {"weights": "samples"}
    kept = train(name, **options)
    added: list[int] = []
    put = totals.Totals.put

    def counted(self: totals.Totals, position: int, up: Any) -> None:
        added.append(position)
        put(self, position, up)

    monkeypatch.setattr(totals.Totals, "put", counted)
    summed()
    same(kept, train(name, **options))
    assert bool(added) == (name not in one_by_one)
    for workers in (1, 3):
        added.clear()
        same(kept, train(name, "processes", workers=workers, **options))
        assert bool(added) == (name not in one_by_one)


def test_what_servers_ask_for() -> None:
    scaffold = sums_asked(fk.algorithm("scaffold"), "client", small_layers(2))
    assert scaffold == Counter({Sum(Term("dx"), "avg"): 1, Sum(Term("dc"), "share"): 1})
    assert sums_asked(fk.algorithm("fednova"), "client", small_layers(2)) == Counter(
        {Sum(Term("a"), "avg"): 1, Sum(Term("dx", "/", "a"), "avg"): 1}
    )
    assert sums_asked(fk.algorithm("fafed"), "warmup", small_layers(2)) == Counter(
        {Sum(Term("g"), "share"): 1, Sum(Term("g", "*", "g"), "share"): 1}
    )
    assert sums_asked(fk.algorithm("gradma"), "client", small_layers(2)) is None


# Servers that do other things with uploads than add them up ------------------------------------------------------------


class Server(NamedTuple):
    x: Tensor


class Up(NamedTuple):
    dx: Tensor


def method(step: Callable[[Server, Up, Round], Tensor]) -> Algorithm:
    """FedAvg with another server step. It has a name of its own, but is not registered."""

    class Changed(type(fk.algorithm("fedavg"))):  # type: ignore[misc]
        def server(self, s: Server, up: Up, r: Round) -> Server:
            return type(s)(x=s.x + step(s, up, r))

    return Changed()


SERVER_HOOKS: dict[str, Callable[[Server, Up, Round], Tensor]] = {
    "median": lambda s, up, r: up.dx.median(0).values,
    "norms": lambda s, up, r: r.avg(up.dx) / up.dx.norm(dim=1).max(),
    "weights of its own": lambda s, up, r: r.avg(up.dx * r.K[:, None].to(up.dx.dtype)),
    "first": lambda s, up, r: up.dx[0],
    "how many": lambda s, up, r: r.avg(up.dx) * len(up.dx),
    "torch": lambda s, up, r: torch.clamp(up.dx, -0.01, 0.01).mean(0),
    "only later": lambda s, up, r: r.avg(up.dx) if r.t < 2 else up.dx.median(0).values,
    "more often later": lambda s, up, r: r.avg(up.dx) if r.t < 2 else 0.5 * r.avg(up.dx) + 0.5 * r.avg(up.dx),
    "in place": lambda s, up, r: r.avg(up.dx).mul_(0.5) + r.avg(up.dx),
}


@pytest.mark.parametrize("step", SERVER_HOOKS)
@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_what_sums_cannot_give_is_given_by_kept_uploads(engine: str, step: str, summed: Callable[[], None]) -> None:
    algo = method(SERVER_HOOKS[step])
    kept = train(algo, rounds=4)
    summed()
    same(kept, train(algo, engine, rounds=4, workers=2))


# Faults ---------------------------------------------------------------------------------------------------------------


def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The clients of every call of the runner, as the calls come."""
    calls: list[list[int]] = []
    run = Sequential.run

    def counted(self: Sequential, exchange: Exchange) -> Any:
        calls.append(exchange.ids)
        return run(self, exchange)

    monkeypatch.setattr(Sequential, "run", counted)
    return calls


def failing(labels: set[int]) -> fk.Federation:
    """Four clients; client i has label i only. Those with a label of `labels` have inputs that are not finite."""
    x = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for label in labels:
        x[10 * label] = torch.nan
    return fk.Federation(x, torch.arange(4).repeat_interleave(10), np.arange(0, 41, 10))  # `from_arrays` would refuse them


def test_a_client_that_always_fails_makes_the_others_run_twice_only_once(
    summed: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"fed": failing({2}), "cohort": 4, "rounds": 4, "local_steps": 1}
    kept = train(**options)
    summed()
    calls = runs_of(monkeypatch)
    run = train(**options)
    same(kept, run)
    assert [row["faults"] for row in run.history] == [row["faults"] for row in kept.history]
    assert [row["dropped"] for row in run.history] == [1] * 4
    assert calls == [[0, 1, 2, 3], [0, 1, 3]] + [[2], [0, 1, 3]] * 3


def test_a_suspect_that_answers_takes_part_again(summed: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    summed()
    fails = {1: [2]}  # round -> clients
    at, calls = [0], runs_of(monkeypatch)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if int(target[0]) in fails.get(at[0], []):
            raise ArithmeticError
        return cross_entropy(output, target)

    def progress(row: dict[str, Any]) -> None:
        at[0] = row["round"] + 1

    options: dict[str, Any] = {"engine": "sequential", "cohort": 4, "rounds": 4, "local_steps": 1, "batch_size": 8}
    run = fk.train(small_net(), failing(set()), "scaffold", loss=loss, progress=progress, evaluate_every=0, **options)
    assert [row["dropped"] for row in run.history] == [0, 1, 0, 0]
    everybody = [0, 1, 2, 3]
    assert calls == [everybody, everybody, [0, 1, 3], [2], everybody, everybody]


def test_if_other_clients_fail_every_time_uploads_are_kept(
    summed: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    summed()
    monkeypatch.setattr(folding, "REPEATS", 2)
    calls = runs_of(monkeypatch)
    fed = failing({0, 1, 2})
    cohort = [[0, 3], [1, 3], [2, 3], [0, 3]]
    run = train(fed=fed, cohort=cohort, rounds=4, local_steps=1)
    assert [list(row["faults"]) for row in run.history] == [["0"], ["1"], ["2"], ["0"]]
    assert calls == [[0, 3], [3], [1, 3], [3], [2, 3], [0, 3]]
    same(run, train(fed=fed, cohort=[[3]] * 4, rounds=4, local_steps=1))


def test_all_suspects_fail(summed: Callable[[], None]) -> None:
    """Then nobody is left to run, and the warm-up goes on with nothing to add."""
    summed()
    with pytest.raises(fk.RoundError, match="0 of 2 clients answered"):
        train(fed=failing({0, 1}), cohort=[[0, 1, 3], [0, 1]], rounds=2, local_steps=1)


# Memory ---------------------------------------------------------------------------------------------------------------


def peak_of_a_run(engine: str, S: int, metrics: list[str]) -> float:
    """MB that a run takes at most, workers included.

    With few clients per round it has more rounds: a short run would end between two looks of the watching thread.
    """
    d_inputs, n = 500, 200
    fed = fk.Federation(torch.randn(n, d_inputs), torch.randint(0, 200, (n,)), np.arange(n + 1))
    options: dict[str, Any] = {"local_steps": 1, "batch_size": 1, "metrics": metrics, "workers": 2}
    train("fedavg", engine, model=lambda: nn.Linear(d_inputs, 200), fed=fed, cohort=2, rounds=1, **options)
    until(lambda: not children(os.getpid()))  # the workers of the run before
    before, over, most = pss(), threading.Event(), [0]

    def watch() -> None:
        while not over.wait(0.002):
            most[0] = max(most[0], pss())

    thread = threading.Thread(target=watch)
    thread.start()
    train("fedavg", engine, model=lambda: nn.Linear(d_inputs, 200), fed=fed, cohort=S, rounds=400 // S, **options)
    over.set()
    thread.join()
    return (most[0] - before) / 1e6


PEAKS = """
from fedkeel.engine import totals
from tests.engine.test_folding import peak_of_a_run

totals.KEEP = 0
print(*(peak_of_a_run({engine!r}, S, metrics) for S, metrics in ((10, []), (200, []), (200, ["drift"]))))
"""


def pss() -> int:
    """Bytes that this process and its children hold. Shared pages count once."""
    total = 0
    for pid in [os.getpid(), *children(os.getpid())]:
        with contextlib.suppress(OSError, StopIteration):  # it has just ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says how much memory is shared")
@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_memory_does_not_grow_with_the_number_of_participants(engine: str) -> None:
    """100,000 parameters: the uploads of 200 clients are 80 MB. A measurement that needs single uploads keeps them.

    It runs in a new process. Pages that a forked process shared with the tests would count by the number of sharers.
    """
    done = subprocess.run([sys.executable, "-c", PEAKS.format(engine=engine)], cwd=ROOT, **TEXT)
    few, many, kept = map(float, done.stdout.split())
    assert many < few + 20
    assert kept > few + 60
