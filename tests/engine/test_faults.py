"""Faults of clients, workers and disks, and what remains of the run."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkeel as fk
from fedkeel.engine import exchange, loop, totals
from fedkeel.engine.client_work import ClientTask, ClientWork
from fedkeel.engine.runners import processes
from fedkeel.engine.runners.processes import StoredTask, Tickets, in_portions
from fedkeel.errors import StorageError
from fedkeel.files import write_atomically
from tests.processes import alive, children, forked, kill, until
from tests.tasks import copy_record, same_record

N, BAD, MARK = 6, 2, 10  # the bad client is the only one with this label
REST = [client for client in range(N) if client != BAD]
ALL = [list(range(N))] * 4

every_engine = pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes"])
one_by_one = pytest.mark.parametrize("engine", ["sequential", "processes"])
kept_and_summed = pytest.mark.usefixtures("uploads")


@pytest.fixture(autouse=True)
def _one_name_for_all_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests resume a run with a loss that fails. A run knows its loss by name, and would refuse another one."""
    monkeypatch.setattr(loop, "loss_name", lambda loss: "a loss")


@pytest.fixture(params=["kept", "summed"])
def uploads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads as small as here are kept for the server step. Large ones are added up as they come."""
    if request.param == "summed":
        monkeypatch.setattr(totals, "KEEP", 0)
        monkeypatch.setattr(processes, "AHEAD", 0)
        monkeypatch.setattr(processes, "UNEQUAL", 1)


def make_fed() -> fk.Federation:
    data = fk.load("digits")
    parts = np.split(np.arange(300), np.cumsum([40, 60, 50, 30, 70]))
    labels = data.y.clone()
    labels[parts[BAD]] = MARK
    clients = [(data.x[part], labels[part]) for part in parts]
    return fk.Federation.from_arrays(clients, test=(data.x[300:400], data.y[300:400]))


FED = make_fed()


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 11))


def train(engine: str = "sequential", **kw: Any) -> fk.Run:
    """Three rounds of SCAFFOLD with all clients, 1 to 3 steps each, in float64."""
    settings: dict[str, Any] = {
        "rounds": 3,
        "cohort": [list(range(N))] * 3,
        "batch_size": 25,
        "loss": cross_entropy,
        "dtype": torch.float64,
        "progress": False,
        "workers": 2,
        "evaluate_every": 0,
        **kw,
    }
    return fk.train(settings.pop("model", net), settings.pop("fed", FED), "scaffold", engine=engine, **settings)


def agree(engine: str, a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12) if engine == "vectorized" else torch.equal(a, b)


# Clients --------------------------------------------------------------------------------------------------------------


def raises(output: Tensor, target: Tensor) -> Tensor:
    if bool((target == MARK).any()):
        raise ArithmeticError("the sensor\nis broken")
    return cross_entropy(output, target)


def times(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss whose gradient is `factor` times too large for the bad client."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target) * torch.where(target == MARK, factor, 1.0).mean()

    return loss


FAULTS = [
    pytest.param("sequential", raises, "ArithmeticError: the sensor is broken", id="sequential-raises"),
    pytest.param("processes", raises, "ArithmeticError: the sensor is broken", id="processes-raises"),
    *(
        pytest.param(engine, times(factor), "NotFinite: dx is not finite", id=f"{engine}-{factor}")
        for engine in ("sequential", "vectorized", "processes")
        for factor in (float("nan"), float("inf"))
    ),
]


@kept_and_summed
@pytest.mark.parametrize(("engine", "loss", "why"), FAULTS)
def test_a_bad_client_is_dropped_named_and_leaves_no_trace(tmp_path: Path, engine: str, loss: Any, why: str) -> None:
    """The bad client takes part in round 0 and then fails. The result is as if it had not been in the later rounds."""
    before = train(engine, rounds=1, out=tmp_path)
    memory = copy_record(before.clients[BAD])
    run = train(engine, loss=loss, out=tmp_path, resume=True)
    assert [row["dropped"] for row in run.history] == [0, 1, 1]
    assert [row["clients"] for row in run.history] == [N, N - 1, N - 1]
    assert [row["faults"] for row in run.history] == [{}, {str(BAD): why}, {str(BAD): why}]
    assert same_record(run.clients[BAD], memory)
    without = train(engine, cohort=[list(range(N)), REST, REST])
    assert agree(engine, run.params, without.params)
    for client in REST:
        assert agree(engine, run.clients[client].c, without.clients[client].c)
    assert all(np.isfinite(row["train_loss"]) for row in run.history)


@kept_and_summed
@every_engine
def test_a_client_that_never_succeeds_keeps_no_record(engine: str) -> None:
    run = train(engine, loss=times(float("nan")))
    assert run.clients[BAD] is None
    assert all(run.clients[client] is not None for client in REST)


@kept_and_summed
@every_engine
def test_nan_in_the_data(engine: str) -> None:
    x = FED.x.clone()
    x[FED.offsets[BAD] + 1, 0, 3, 3] = torch.nan
    run = train(engine, fed=fk.Federation(x, FED.y, FED.offsets))
    assert [list(row["faults"]) for row in run.history] == [[str(BAD)]] * 3
    assert bool(torch.isfinite(run.params).all())
    assert agree(engine, run.params, train(engine, cohort=[REST] * 3).params)


def test_a_bad_client_does_not_harm_its_group() -> None:
    """Vectorised clients run together, so one label out of range makes the whole call fail."""
    y = FED.y.clone()
    y[FED.offsets[BAD]] = 77
    run = train("vectorized", fed=fk.Federation(FED.x, y, FED.offsets), local_steps=2)
    assert [list(row["faults"]) for row in run.history] == [[str(BAD)]] * 3
    assert agree("vectorized", run.params, train("vectorized", cohort=[REST] * 3, local_steps=2).params)


@kept_and_summed
@one_by_one
def test_statistics_that_are_not_finite_are_a_fault(engine: str) -> None:
    """The inputs are so large that BatchNorm's variance overflows. The update is divided by it and stays finite."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Linear(12, 11))

    x = FED.x.clone()
    x[FED.offsets[BAD] : FED.offsets[BAD + 1]] *= 1e25
    run = train(engine, model=model, fed=fk.Federation(x, FED.y, FED.offsets), dtype=torch.float32)
    assert [list(row["faults"]) for row in run.history] == [[str(BAD)]] * 3
    assert all(bool(torch.isfinite(b).all()) for b in run.model.buffers())


@kept_and_summed
@every_engine
def test_too_few_answers_stop_the_run_and_it_can_be_resumed(tmp_path: Path, engine: str) -> None:
    train(engine, rounds=1, out=tmp_path, min_clients=N)
    bad = times(float("nan"))
    with pytest.raises(fk.RoundError, match="5 of 6 clients answered, min_clients is 6") as info:
        train(engine, loss=bad, out=tmp_path, resume=True, min_clients=N)
    error = info.value
    assert (error.algorithm, error.round, error.client, error.stage) == ("scaffold", 1, BAD, "client")
    assert "NotFinite" in str(error)
    assert "\n" not in str(error)
    run = train(engine, out=tmp_path, resume=True, min_clients=N)
    straight = train(engine, min_clients=N)
    assert torch.equal(run.params, straight.params)
    assert all(same_record(run.clients[i], straight.clients[i]) for i in range(N))
    assert [row["round"] for row in run.history] == [0, 1, 2]


@kept_and_summed
def test_a_run_resumes_with_a_smaller_min_clients(tmp_path: Path) -> None:
    bad = times(float("nan"))
    with pytest.raises(fk.RoundError):
        train(loss=bad, out=tmp_path, min_clients=N)
    run = train(loss=bad, out=tmp_path, min_clients=1, resume=True)
    assert torch.equal(run.params, train(cohort=[REST] * 3).params)


@kept_and_summed
@every_engine
def test_no_answer_at_all(engine: str) -> None:
    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise ArithmeticError("no")

    with pytest.raises(fk.RoundError, match="0 of 6 clients answered"):
        train(engine, loss=broken)


@kept_and_summed
def test_a_failing_warm_up_starts_again(tmp_path: Path) -> None:
    """There is no checkpoint to resume from before the warm-up is complete."""

    def go(**kw: Any) -> fk.Run:
        options = {"rounds": 2, "cohort": 3, "progress": False, "engine": "sequential", "out": tmp_path, "resume": True}
        return fk.train(net, FED, fk.algorithm("scaffold-m", start="warmup"), **{"loss": cross_entropy, **options, **kw})

    def most(output: Tensor, target: Tensor) -> Tensor:
        if len(target) <= 50:  # all clients but the two largest
            raise ArithmeticError
        return cross_entropy(output, target)

    with pytest.raises(fk.RoundError, match="2 of 6 clients answered, min_clients is 3") as info:
        go(loss=most, min_clients=3, batch_size=None)
    assert (info.value.round, info.value.stage, info.value.client) == (-1, "warmup", 0)
    assert torch.equal(go().params, go(out=None, resume=False).params)


@kept_and_summed
def test_a_warm_up_in_which_all_clients_fail_ends_soon_and_says_why() -> None:
    calls = []

    def broken(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        raise ArithmeticError("a mistake in the loss")

    fed = fk.Federation.from_arrays([(FED[i % N].x, FED[i % N].y) for i in range(60)])
    with pytest.raises(fk.RoundError, match=r"0 of 10 clients answered.*a mistake in the loss") as info:
        fk.train(net, fed, "padamfed", rounds=1, cohort=2, loss=broken, engine="sequential", progress=False)
    assert isinstance(info.value.__cause__, ArithmeticError)
    assert len(calls) <= 12


@kept_and_summed
@pytest.mark.parametrize("cohort", [1, 3])
@pytest.mark.parametrize("method", ["padamfed", "fafed"])
def test_a_client_that_fails_in_the_warm_up_is_named_and_stops_no_other(method: str, cohort: int) -> None:
    """The warm-up visits some clients at a time. With one at a time, the part of the bad client is empty."""
    options = {"rounds": 2, "progress": False, "engine": "sequential", "loss": raises, "min_clients": cohort}
    algo = fk.algorithm(method, **({"allow_partial": True} if method == "fafed" else {}))
    run = fk.train(net, FED, algo, cohort=[REST[:cohort], REST[-cohort:]], **options)
    assert list(run.history[0]["warmup_faults"]) == [str(BAD)]
    assert "ArithmeticError" in run.history[0]["warmup_faults"][str(BAD)]
    assert [row["dropped"] for row in run.history] == [0, 0]
    assert run.summary()["dropped"] == 1
    assert torch.isfinite(run.params).all()


def test_the_last_part_of_a_warm_up_may_be_empty() -> None:
    """FAFED moves the model after the last part of the warm-up, even if no client of that part answered."""
    order = [*REST, BAD]
    fed = fk.Federation.from_arrays([(FED[i].x, FED[i].y) for i in order])
    options = {"rounds": 1, "progress": False, "engine": "sequential", "local_steps": 2, "batch_size": None}
    algo = fk.algorithm("fafed", allow_partial=True)
    run = fk.train(net, fed, algo, cohort=[[0]], loss=raises, **options)
    assert list(run.history[0]["warmup_faults"]) == [str(N - 1)]
    whole = fk.train(net, fed, algo, cohort=[[0]], loss=cross_entropy, **options)
    assert not torch.equal(run.server.m, whole.server.m)


def test_large_owned_fields_are_not_checked_for_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """GradMA's memory is a hundred times as large as the model. Its rows were already checked when they were uploads."""
    looked: list[tuple[str, ...]] = []
    monkeypatch.setattr(exchange, "check_finite", lambda new, without: looked.append(tuple(set(new._fields) - set(without))))
    fk.train(net, FED, "gradma", rounds=1, cohort=3, engine="sequential", progress=False)
    assert looked
    assert "x" in looked[0]
    assert "D" not in looked[0]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_server_result_that_is_not_finite_stops_the_run(tmp_path: Path, engine: str) -> None:
    """Pixels that are always 0 have a zero gradient: with nothing added to the root, the step is 0 / 0."""
    algo = fk.algorithm("fedadam", tau=0.0)
    with pytest.raises(fk.RoundError, match="fedadam, round 0, server: NotFinite: x is not finite"):
        fk.train(net, FED, algo, rounds=3, cohort=3, engine=engine, progress=False, out=tmp_path)
    tensors = load_file(tmp_path / "checkpoint.safetensors")
    assert all(torch.isfinite(z).all() for z in tensors.values()), "there is something to go on from"


@pytest.mark.parametrize("name", ["mime", "mimelite", "mime-lamb"])
def test_a_failure_between_the_two_exchanges_of_a_round(tmp_path: Path, name: str) -> None:
    """In round 1 the survey succeeds and the local steps fail. The checkpoint must be from before the survey."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if bool((target == MARK).any()) and len(target) <= 25:
            raise ArithmeticError
        return cross_entropy(output, target)

    def go(**kw: Any) -> fk.Run:
        options = {"rounds": 3, "cohort": N, "batch_size": 25, "progress": False, "engine": "sequential", "min_clients": N}
        return fk.train(net, FED, name, **{"loss": cross_entropy, **options, **kw})

    go(rounds=1, out=tmp_path)
    with pytest.raises(fk.RoundError) as info:
        go(loss=loss, out=tmp_path, resume=True)
    assert (info.value.round, info.value.stage) == (1, "client")
    run, straight = go(out=tmp_path, resume=True), go()
    assert same_record(run.server, straight.server)
    assert all(same_record(run.clients[i], straight.clients[i]) for i in range(N))


def test_a_failing_evaluation_is_a_round_error() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if len(target) == 100:
            raise ArithmeticError("test data")
        return cross_entropy(output, target)

    with pytest.raises(fk.RoundError, match="ArithmeticError: test data") as info:
        train(loss=loss)
    assert (info.value.round, info.value.client, info.value.stage) == (2, None, "evaluate")


def test_round_errors_survive_pickling() -> None:
    """Sweeps run in process pools, and an exception that cannot be unpickled breaks the pool."""
    import pickle

    error = pickle.loads(pickle.dumps(fk.RoundError("fedavg", 3, 7, "client", "why")))
    assert (error.algorithm, error.round, error.client, error.stage) == ("fedavg", 3, 7, "client")
    assert "why" in str(error)


# Workers --------------------------------------------------------------------------------------------------------------


DRIVER = os.getpid()


def in_worker() -> bool:
    return os.getpid() != DRIVER


def once(marker: Path) -> bool:
    """True for the first process that calls it."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@kept_and_summed
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path: Path, workers: int) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if in_worker() and bool((target == MARK).any()) and once(tmp_path / "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(output, target)

    run = train("processes", loss=loss, workers=workers, out=tmp_path / "run")
    assert (tmp_path / "died").exists()
    assert [row["dropped"] for row in run.history] == [0, 0, 0]
    straight = train("sequential")
    assert torch.equal(run.params, straight.params)
    assert all(same_record(run.clients[i], straight.clients[i]) for i in range(N))


@kept_and_summed
@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_from_outside_change_nothing(seed: int) -> None:
    """At two random moments: while idle, between two clients, or during a client."""
    rng = random.Random(seed)
    killed = []
    stop = threading.Event()

    def killer() -> None:
        while len(killed) < 2 and not stop.wait(rng.uniform(0.0, 0.06)):
            with contextlib.suppress(ProcessLookupError, IndexError):
                killed.append(rng.choice(children(os.getpid())))
                os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        run = train("processes", rounds=30, cohort=4)
    finally:
        stop.set()
        thread.join()
    assert len(killed) == 2
    assert torch.equal(run.params, train("sequential", rounds=30, cohort=4).params)
    assert sum(row["dropped"] for row in run.history) == 0


@kept_and_summed
@pytest.mark.parametrize("workers", [2, 4])
def test_idle_workers_killed_between_rounds(workers: int) -> None:
    def kill_all(row: dict[str, Any]) -> None:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    run = train("processes", progress=kill_all, workers=workers)
    assert torch.equal(run.params, train("sequential").params)
    assert sum(row["dropped"] for row in run.history) == 0


@kept_and_summed
def test_a_machine_on_which_every_worker_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientWork, "samples", lambda self, tasks: os._exit(7))  # before it begins a client
    with pytest.raises(fk.RoundError, match=r"0 of 6 clients answered.*workers died.*exit code 7"):
        train("processes")


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("S", [1, 2, 3, 10, 100])
def test_portions_hold_every_client_once_and_keep_all_workers_busy(S: int, workers: int) -> None:
    tasks = [
        StoredTask(ClientTask("client", 0, 7 * position, 1 + position % 4, {}, position), None, None, position)
        for position in range(S)
    ]
    portions = in_portions(tasks, workers)
    assert sorted(stored.task.position for portion in portions for stored in portion) == list(range(S))
    assert all(portions)
    assert max(map(len, portions)) <= max(1, 2 * S / (3 * workers))
    alone = [portion for portion in portions if len(portion) == 1]
    assert [portion[0].task.K for portion in alone] == sorted((portion[0].task.K for portion in alone), reverse=True)


def test_every_ticket_is_drawn_once() -> None:
    tickets, context = Tickets(900), multiprocessing.get_context("fork")
    drawn = context.SimpleQueue()
    for _ in range(2):  # the second time after a restart
        people = [context.Process(target=lambda: drawn.put([tickets.take() for _ in range(301)])) for _ in range(3)]
        for person in people:
            person.start()
        numbers = [number for _ in people for number in drawn.get()]
        assert sorted(numbers) == [*range(900), 900, 900, 900]
        for person in people:
            person.join()
        tickets.restart()
    tickets.close()


@kept_and_summed
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_kills_its_workers_is_dropped(workers: int) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if in_worker() and bool((target == MARK).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(output, target)

    run = train("processes", loss=loss, workers=workers, rounds=2)
    for row in run.history:
        assert row["dropped"] == 1
        assert row["faults"][str(BAD)].startswith("WorkerDied: 3 workers died")
    assert run.clients[BAD] is None
    assert torch.equal(run.params, train(cohort=[REST] * 2, rounds=2).params)


@kept_and_summed
@pytest.mark.parametrize("workers", [1, 2])
def test_a_slow_client_is_dropped(workers: int) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if in_worker() and bool((target == MARK).any()):
            time.sleep(60)
        return cross_entropy(output, target)

    start = time.monotonic()
    run = train("processes", loss=loss, workers=workers, rounds=2, timeout=1.0)
    assert time.monotonic() - start < 30
    for row in run.history:
        assert row["faults"] == {str(BAD): "Timeout: no result within 1 s"}
    assert torch.equal(run.params, train(cohort=[REST] * 2, rounds=2).params)
    assert children(os.getpid()) == []


@kept_and_summed
def test_slow_clients_within_the_limit_are_not_dropped() -> None:
    """The limit is for one client. Time in a worker's queue does not count."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        time.sleep(0.25)
        return cross_entropy(output, target)

    run = train("processes", loss=loss, workers=1, rounds=1, timeout=1.0, local_steps=2)
    assert run.history[0]["faults"] == {}


@kept_and_summed
def test_a_client_that_exits_is_dropped() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if in_worker() and bool((target == MARK).any()):
            raise SystemExit(3)
        return cross_entropy(output, target)

    run = train("processes", loss=loss, rounds=1)
    assert "exit code 3" in run.history[0]["faults"][str(BAD)]


class Interrupt(Exception):
    pass


def interrupt(row: dict[str, Any]) -> None:
    assert len(children(os.getpid())) == 2
    raise Interrupt


@kept_and_summed
def test_no_worker_outlives_the_run() -> None:
    assert children(os.getpid()) == []
    train("processes")
    assert children(os.getpid()) == []
    with pytest.raises(Interrupt):
        train("processes", progress=interrupt)
    assert children(os.getpid()) == []
    with pytest.raises(fk.RoundError):
        train("processes", loss=raises, min_clients=N)
    assert children(os.getpid()) == []
    assert multiprocessing.active_children() == []


@kept_and_summed
def test_ctrl_c_in_the_middle_of_a_round_is_quick(tmp_path: Path) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if os.getpid() not in driver:
            (tmp_path / f"busy-{os.getpid()}").touch()
            time.sleep(60)
        return cross_entropy(output, target)

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        driver.append(os.getpid())
        with pytest.raises(KeyboardInterrupt):
            train("processes", loss=loss)
        assert children(os.getpid()) == []

    driver: list[int] = []
    with forked(work) as child:
        assert until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(child.pid, signal.SIGINT)
        child.join(timeout=3)
        assert child.exitcode == 0


@kept_and_summed
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_workers_die_with_the_driver(tmp_path: Path, busy: bool) -> None:
    """Also a worker that runs a long client. Otherwise it would write to client memory that a resumed run uses."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if busy and os.getpid() not in driver:
            (tmp_path / f"busy-{os.getpid()}").touch()
            time.sleep(60)
        return cross_entropy(output, target)

    def pause(row: dict[str, Any]) -> None:
        (tmp_path / "idle").touch()
        time.sleep(60)

    def work() -> None:
        driver.append(os.getpid())
        train("processes", loss=loss, progress=pause)

    driver: list[int] = []
    with forked(work) as child:
        assert until(lambda: len(list(tmp_path.iterdir())) == (2 if busy else 1))
        workers = children(child.pid)
        assert len(workers) == 2
        kill(child)
        assert until(lambda: not any(map(alive, workers)), seconds=5)


def test_workers_accept_what_cannot_be_pickled() -> None:
    lock, seen = threading.Lock(), []

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.guard = net(), None

        def forward(self, x: Tensor) -> Tensor:
            with lock:
                return self.body(x)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(1)
        return (lambda o, t: cross_entropy(o, t))(output, target)

    run = train("processes", model=lambda: Local(), loss=loss)
    assert torch.equal(run.params, train("sequential", model=Local, loss=loss).params)


def test_threads_of_the_caller_do_not_hang_the_workers() -> None:
    """The caller has run parallel torch code before, and a fork does not copy its threads."""
    script = """
import torch
torch.set_num_threads(2)
big = torch.randn(600, 600, requires_grad=True)
(big @ big).sum().backward()
from tests.engine.test_faults import train
train("processes")
assert torch.get_num_threads() == 2
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=root, timeout=60, check=True)


def test_training_in_a_thread() -> None:
    """The kernel ends workers together with the thread that forked them. That thread lives as long as the run."""
    runs: list[fk.Run] = []
    thread = threading.Thread(target=lambda: runs.append(train("processes")))
    thread.start()
    thread.join(timeout=60)
    assert torch.equal(runs[0].params, train().params)


def test_workers_must_be_a_positive_number() -> None:
    with pytest.raises(ValueError, match="workers = -1 is not allowed"):
        train("processes", workers=-1)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout = "):
        train("processes", timeout=timeout)


# Disks ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, if this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True).returncode:
        pytest.skip("not allowed to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("share", [1e9, 1e-9], ids=["checkpoints", "no checkpoints"])
@one_by_one
def test_a_full_disk_stops_the_run_and_it_can_be_resumed(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, engine: str, share: float
) -> None:
    """The disk is full after round 2. With frequent checkpoints one of them fails, otherwise client memory or metrics."""
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", share)
    monkeypatch.setattr("fedkeel.engine.state.store.CHUNK", 4)
    out = small_disk / "run"
    options: dict[str, Any] = {"rounds": 8, "cohort": 3}

    def full_after_round_2(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            fill(small_disk)

    with pytest.raises(StorageError, match="No space left on device") as info:
        train(engine, out=out, progress=full_after_round_2, **options)
    assert "\n" not in str(info.value)
    assert not list(out.glob("*.part"))
    assert children(os.getpid()) == []
    with pytest.raises(StorageError):
        train(engine, out=out, resume=True, **options)
    (small_disk / "filler").unlink()
    run = train(engine, out=out, resume=True, **options)
    straight = train(**options)
    assert torch.equal(run.params, straight.params)
    assert all(same_record(run.clients[i], straight.clients[i]) for i in range(N))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(8))


def test_no_room_for_the_client_memory(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is reserved before it is written. Otherwise a full disk under mapped memory would kill the process (SIGBUS)."""
    big = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 600), nn.Linear(600, 11))  # noqa: E731
    with pytest.raises(StorageError, match=r"cannot write .*clients\.bin: No space left"):
        train(model=big, out=small_disk / "run", cohort=3, dtype=torch.float32)


@pytest.mark.parametrize("call", range(8))
def test_a_write_that_fails_leaves_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """The same without a small disk: from some moment on, every write fails."""
    train(rounds=2, out=tmp_path, cohort=ALL)
    calls = []
    with monkeypatch.context() as broken:

        def fails(file: int) -> None:
            calls.append(file)
            if len(calls) > call:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        broken.setattr("fedkeel.files.os.fsync", fails)
        with pytest.raises(StorageError, match="No space left on device"):
            train(rounds=4, out=tmp_path, resume=True, cohort=ALL)
    assert not list(tmp_path.glob("*.part"))
    assert torch.equal(train(rounds=4, out=tmp_path, resume=True, cohort=ALL).params, train(rounds=4, cohort=ALL).params)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def no_replace(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"new"
        assert synced == [source.stat().st_ino]
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    synced = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    with monkeypatch.context() as broken:
        broken.setattr("os.replace", no_replace)
        with pytest.raises(StorageError, match="Input/output error"):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    write_atomically(file, b"new")
    assert synced[1:] == [file.stat().st_ino, tmp_path.stat().st_ino]  # the content, then its name
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_a_directory_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(StorageError, match="out: cannot write"):
        train(out=file if place == "a file" else file / "run")
    assert file.read_text() == "mine"


def test_a_read_only_file_system(small_disk: Path) -> None:
    train(rounds=1, out=small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for out in (small_disk / "run", small_disk / "other"):
        with pytest.raises(StorageError, match="out: cannot write"):
            train(out=out, resume=True)


def test_folders_in_place_of_the_files(tmp_path: Path) -> None:
    for name in ("checkpoint.safetensors.part", "config.toml.part", "clients.bin"):
        out = tmp_path / name
        (out / name).mkdir(parents=True)
        with pytest.raises(StorageError, match="out: cannot write"):
            train(out=out)


def test_two_processes_do_not_train_in_one_directory(tmp_path: Path) -> None:
    def pause(row: dict[str, Any]) -> None:
        (tmp_path / "started").touch()
        time.sleep(60)

    out = tmp_path / "run"
    with forked(lambda: train(out=out, progress=pause)) as child:
        assert until((tmp_path / "started").exists)
        with pytest.raises(ValueError, match="another process is training in"):
            train(out=out, resume=True)
        kill(child)
    assert torch.equal(train(out=out, resume=True).params, train().params)


def test_runs_leave_no_open_files(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    train("processes", out=tmp_path / "warm")
    before = open_files()
    for i in range(3):
        train("processes", out=tmp_path / str(i))
        with pytest.raises(fk.RoundError):
            train("processes", out=tmp_path / f"bad{i}", loss=raises, min_clients=N)
    import gc

    gc.collect()
    assert open_files() <= before + 1


def test_temporary_client_memory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = train("processes", store="disk")
    assert list(tmp_path.rglob("clients.bin"))
    assert same_record(run.clients[0], train().clients[0])
    del run
    gc.collect()
    assert not list(tmp_path.iterdir())
