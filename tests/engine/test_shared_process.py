"""Several runs in one process, models that draw in `forward`, and signals from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.engine.client_work import ClientWork
from tests.tasks import digits_fed, small_net

FED = digits_fed(clients=6)


class Noisy(nn.Module):
    """Draws random numbers, in evaluation mode too. torch's vmap cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x + 0.3 * torch.randn_like(x))


def train(model: Any, **kw: Any) -> fk.Run:
    settings = {"rounds": 4, "cohort": 6, "local_steps": 2, "batch_size": 10, "engine": "sequential", "progress": False}
    return fk.train(model, FED, "fedavg", **(settings | kw))


@pytest.fixture(scope="module")
def noisy() -> nn.Module:
    torch.manual_seed(0)
    return Noisy()


def losses(run: fk.Run) -> list[float]:
    return [row["test_loss"] for row in run.history]


def test_evaluation_does_not_depend_on_the_engine_or_on_what_was_drawn_before(noisy: nn.Module) -> None:
    one = train(noisy)
    torch.rand(7)
    state = torch.get_rng_state()
    assert losses(train(noisy)) == losses(one)
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator stays as it is"
    assert losses(train(noisy, engine="processes", workers=2)) == losses(one)


def test_runs_in_two_threads_have_the_bits_of_runs_one_after_the_other(noisy: nn.Module) -> None:
    alone = [train(noisy, seed=seed, rounds=8) for seed in range(3)]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found: dict[int, fk.Run] = {}
    workers = [
        threading.Thread(target=lambda seed=seed: found.update({seed: train(noisy, seed=seed, rounds=8)}))
        for seed in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for seed, run in enumerate(alone):
        assert torch.equal(found[seed].params, run.params), seed
        assert losses(found[seed]) == losses(run)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_workers_start_while_another_thread_draws(noisy: nn.Module) -> None:
    """A forked worker must not wait for a lock that a thread of its parent held."""
    there = threading.Thread(target=train, args=(noisy,), kwargs={"rounds": 30})
    there.start()
    run = train(noisy, engine="processes", workers=2)
    there.join()
    assert torch.equal(run.params, train(noisy).params)


@pytest.mark.parametrize("engine", ["vectorized", "compiled"])
def test_a_model_that_vmap_cannot_run_is_refused(noisy: nn.Module, engine: str) -> None:
    with pytest.raises(ValueError, match=f"engine: '{engine}' cannot run this model: .*random"):
        train(noisy, engine=engine)


def test_a_check_before_the_run_leaves_the_buffers_of_a_model_with_its_own_step() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x.flatten(1))

    def step(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    model = Counting()
    run = fk.train(model, FED, "fedavg", step=step, rounds=1, cohort=6, local_steps=2, evaluate_every=0, progress=False)
    assert float(model.calls) == 0
    assert float(run.model.calls) == 2, "two local steps"


@pytest.mark.skipif(sys.platform != "linux", reason="SIGSTOP between two clients")
def test_a_worker_that_is_stopped_between_two_clients_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    straight = train(small_net(4))
    fetch, driver = ClientWork.samples, os.getpid()

    def stopped_once(self: ClientWork, tasks: Any) -> Any:
        if os.getpid() != driver:
            try:
                (tmp_path / "stopped").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGSTOP)
        return fetch(self, tasks)

    monkeypatch.setattr(ClientWork, "samples", stopped_once)
    start = time.monotonic()
    run = train(small_net(4), engine="processes", workers=2, timeout=0.4)
    assert time.monotonic() - start < 20
    assert torch.equal(run.params, straight.params)
    assert all(row["dropped"] == 0 for row in run.history), "no client is to blame"


def test_sigterm_ends_a_command_like_ctrl_c(tmp_path: Path) -> None:
    """It says how to go on, leaves no temporary folder, and the run goes on with the same bits."""
    place = tmp_path / "temporary"
    place.mkdir()
    env = os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(Path(fk.__file__).parents[1])}
    base = [sys.executable, "-m", "fedkeel", "run", "--data", "digits", "--algorithm", "scaffold", "--clients", "10"]
    base += ["--model", "logistic", "--engine", "processes", "--workers", "2", "--rounds", "4000", "--out"]
    going = subprocess.Popen([*base, str(tmp_path / "run")], env=env, stderr=subprocess.PIPE, text=True)
    history = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (history.exists() and history.stat().st_size > 5000):
        time.sleep(0.05)
    going.send_signal(signal.SIGTERM)
    _, said = going.communicate(timeout=60)
    assert going.returncode == 143, said
    assert "go on with: fedkeel resume" in said
    assert "Traceback" not in said
    assert not [path for path in place.iterdir() if path.name.startswith("fedkeel")]
    done = len(history.read_text().splitlines())
    resume = [sys.executable, "-m", "fedkeel", "resume", str(tmp_path / "run"), "--rounds", "4000"]
    assert 0 < done < 4000
    again = subprocess.Popen(resume, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(4)
    again.send_signal(signal.SIGTERM)
    said, _ = again.communicate(timeout=60)
    assert "continuing" in said


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize(("mask", "folder", "file"), [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644)])
def test_a_run_directory_has_the_permissions_that_the_umask_leaves(
    tmp_path: Path, mask: int, folder: int, file: int
) -> None:
    before = os.umask(mask)
    try:
        fk.train(small_net(4), FED, "scaffold", rounds=2, cohort=6, local_steps=1, out=tmp_path / "run", progress=False)
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == folder
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()}
    assert all(mode in (file, 0o600) for mode in modes.values()), modes
    assert modes["model.safetensors"] == file
    assert modes["metrics.jsonl"] == file
