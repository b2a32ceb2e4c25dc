"""A kill loses nothing: resumed runs end with the bits of runs that were never stopped."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import fedkeel as fk
from fedkeel.core.algorithm import lookup
from fedkeel.engine import loop
from tests.processes import children, forked, kill, until
from tests.tasks import digits_fed, same_record, small_net

FED = digits_fed(clients=12)
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"


def train(name: str = "scaffold", **kw: Any) -> fk.Run:
    hyperparameters = {key: kw.pop(key) for key in ("lr", "memory") if key in kw}
    settings: dict[str, Any] = {"rounds": 6, "cohort": 5, "batch_size": 40, "engine": "sequential", "progress": False, **kw}
    model, fed = settings.pop("model", small_net()), settings.pop("fed", FED)
    return fk.train(model, fed, fk.algorithm(name, **hyperparameters), **settings)


def same(a: fk.Run, b: fk.Run) -> None:
    """Bit-equal in everything except the duration of rounds."""
    assert torch.equal(a.params, b.params)
    assert same_record(a.server, b.server)
    assert all(same_record(a.clients[i], b.clients[i]) for i in range(len(FED)))
    assert all(torch.equal(x, y) for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True))
    assert [{**row, "seconds": 0} for row in a.history] == [{**row, "seconds": 0} for row in b.history]


def rounds_on_disk(out: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def next_round(out: Path) -> int:
    with safe_open(out / CHECKPOINT, framework="pt") as file:
        return int(file.metadata()["round"])


# Kills ----------------------------------------------------------------------------------------------------------------


def killed_run(out: Path, name: str, kills: int, most: int, share: float, seconds: float, **kw: Any) -> list[int]:
    """Starts a run with two workers again and again, and kills it each time: after up to `most` more rounds, at a
    random moment of the next `seconds`, about one round. Returns the rounds from which it will resume."""
    rng = random.Random(name)
    reached = []

    def rounds() -> int:
        return (out / "metrics.jsonl").read_text().count("\n") if (out / "metrics.jsonl").exists() else 0

    def work() -> None:
        loop.CHECKPOINT_SHARE = share
        train(name, engine="processes", workers=2, out=out, resume=True, **kw)

    for _ in range(kills):
        enough = (reached[-1] if reached else 0) + rng.randint(0, most)
        with forked(work) as child:
            assert until(lambda: children(child.pid))
            assert until(lambda enough=enough: rounds() >= enough, seconds=60)
            time.sleep(rng.uniform(0.0, seconds))
            assert child.is_alive(), "too late: the run was over"
            kill(child)  # resume at once, whatever its workers are doing
        reached.append(next_round(out) if (out / CHECKPOINT).exists() else 0)
    return reached


def check_kills(out: Path, name: str, kills: int, rounds: int = 40, most: int = 3, share: float = 1e9, **kw: Any) -> None:
    straight = train(name, rounds=rounds, **kw)
    seconds = float(np.median([row["seconds"] for row in straight.history]))  # not a constant: some machines are faster
    reached = killed_run(out, name, kills, most, share, seconds, rounds=rounds, **kw)
    assert reached == sorted(reached)
    assert 0 < reached[-1] < rounds, reached
    run = train(name, engine="processes", workers=2, out=out, resume=True, rounds=rounds, **kw)
    same(run, straight)
    assert rounds_on_disk(out) == list(range(rounds))
    assert not list(out.glob("*.part"))


def test_two_kills(tmp_path: Path) -> None:
    check_kills(tmp_path / "run", "scaffold", kills=2, most=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedlada", "scaffold", "fadamgt", "gradma", "scaffold-m", "padamfed-vr"])
def test_ten_kills(tmp_path: Path, name: str) -> None:
    check_kills(tmp_path / "run", name, kills=10, rounds=100)


@pytest.mark.slow
def test_ten_kills_with_rare_checkpoints(tmp_path: Path) -> None:
    """Many rounds between two checkpoints: slots are reused, but never those of the last checkpoint."""
    check_kills(tmp_path / "run", "scaffold", kills=10, rounds=200, most=15, share=0.1)


def test_a_kill_before_the_first_checkpoint(tmp_path: Path) -> None:
    """During the warm-up: the directory holds client memory but no checkpoint."""

    def stall(row: dict[str, Any]) -> None:
        raise AssertionError("no round was to be reached")

    started = tmp_path / "run" / "clients.bin"

    def slow(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return nn.functional.cross_entropy(output, target)

    options: dict[str, Any] = {"loss": nn.functional.cross_entropy, "out": tmp_path / "run", "resume": True}
    with forked(lambda: train("padamfed", **options | {"loss": slow, "progress": stall})) as child:
        assert until(started.exists)
        time.sleep(0.5)
        assert child.is_alive()
        kill(child)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    same(train("padamfed", **options), train("padamfed", loss=nn.functional.cross_entropy))


# Stops ----------------------------------------------------------------------------------------------------------------


def stopped(out: Path, name: str = "scaffold", **kw: Any) -> None:
    """A run that ends with an exception after round 2, with a checkpoint after every round."""

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
        with pytest.raises(InterruptedError):
            train(name, out=out, progress=stop, **kw)


@pytest.mark.parametrize("name", fk.algorithms())
def test_every_method_resumes(tmp_path: Path, name: str) -> None:
    partial = "allow_partial" not in {field.name for field in dataclasses.fields(lookup(name))}
    kw: dict[str, Any] = {"cohort": 4 if partial else len(FED), "local_steps": 2, "batch_size": 10}
    straight = train(name, **kw)
    stopped(tmp_path, name, **kw)
    assert next_round(tmp_path) in (2, 3)
    same(train(name, out=tmp_path, resume=True, **kw), straight)


@pytest.mark.parametrize("name", ["scaffold", "gradma", "fedlada"])
def test_vectorized_resumes_with_the_same_bits(tmp_path: Path, name: str) -> None:
    stopped(tmp_path, name, engine="vectorized")
    same(train(name, engine="vectorized", out=tmp_path, resume=True), train(name, engine="vectorized"))


def test_resume_with_another_engine(tmp_path: Path) -> None:
    """Engines with the same bits can replace each other in a resumed run."""
    stopped(tmp_path, engine="processes", workers=3)
    same(train(engine="sequential", out=tmp_path, resume=True), train())


def test_the_engine_that_was_chosen_is_kept(tmp_path: Path) -> None:
    first = train(engine="auto", rounds=2, out=tmp_path)
    run = train(engine="auto", out=tmp_path, resume=True)
    assert (run.engine, run.why) == (first.engine, first.why)


@pytest.mark.parametrize("name", ["scaffold", "fedbn"])
def test_batch_norm_and_dropout_resume(tmp_path: Path, name: str) -> None:
    def model() -> nn.Module:
        layers = nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 10)
        return nn.Sequential(nn.Flatten(), *layers)

    stopped(tmp_path, name, model=model, local_steps=2)
    same(train(name, out=tmp_path, resume=True, model=model, local_steps=2), train(name, model=model, local_steps=2))


def test_resume_extends_the_run(tmp_path: Path) -> None:
    train(rounds=2, out=tmp_path)
    train(rounds=4, out=tmp_path, resume=True)
    run = train(rounds=6, out=tmp_path, resume=True)
    same(run, train(rounds=6))
    assert rounds_on_disk(tmp_path) == list(range(6))
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 6


def test_changes_of_records_by_the_caller_do_not_reach_the_disk(tmp_path: Path) -> None:
    run = train(rounds=3, out=tmp_path)
    for client in run.clients.values():
        if client is not None:
            client.c.fill_(1.0)
    same(train(out=tmp_path, resume=True), train())


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(len(target))
        return nn.functional.cross_entropy(output, target)

    train(out=tmp_path, loss=loss)
    calls.clear()
    same(train(out=tmp_path, resume=True, loss=loss), train(loss=nn.functional.cross_entropy))
    assert set(calls) <= {2}, "it is tried on two samples, no more"


def test_resume_without_a_checkpoint_starts_the_run(tmp_path: Path) -> None:
    same(train(out=tmp_path / "new", resume=True), train())


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes"])
@pytest.mark.parametrize("name", ["gradma", "gradma-w", "scaffold"])
def test_a_resumed_run_keeps_the_initial_weights_of_the_first_call(tmp_path: Path, name: str, engine: str) -> None:
    """A script may make its model with other weights when it resumes. New clients still start from the old weights."""

    def net(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return small_net()()

    options = {"cohort": 2, "engine": engine, "out": tmp_path}
    train(name, model=net(0), rounds=2, **options)
    same(train(name, model=net(1), resume=True, **options), train(name, model=net(0), **(options | {"out": None})))


def test_the_error_says_which_values_come_from_theory(tmp_path: Path) -> None:
    train("padamfed", out=tmp_path)
    with pytest.raises(ValueError, match=r"resume: lr is .* by the method's theory: rounds, clients"):
        train("padamfed", out=tmp_path, resume=True, rounds=9)


def test_a_directory_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(out=tmp_path, rounds=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="already holds a run; pass resume=True"):
        train(out=tmp_path, rounds=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_numbers_may_be_numpy_numbers(tmp_path: Path) -> None:
    cohort = [np.array([3, 1]), np.array([0, 5, 2]), np.array([4])]
    run = train(rounds=3, cohort=cohort, seed=np.int64(3), local_steps=np.int32(2), out=tmp_path)
    assert torch.equal(run.params, train(rounds=3, cohort=[[1, 3], [0, 2, 5], [4]], seed=3, local_steps=2).params)
    train(rounds=3, cohort=cohort, seed=3, local_steps=2, out=tmp_path, resume=True)


# What does not fit ----------------------------------------------------------------------------------------------------


def other_data() -> fk.Federation:
    y = FED.y.clone()
    y[5] = (y[5] + 1) % 10
    return fk.Federation(FED.x, y, FED.offsets, FED.order, FED.test)


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("lr", {"lr": 0.2}, "lr is 0.2 now, but 0.1 in the checkpoint"),
    ("seed", {"seed": 1}, "seed is 1 now, but 0 in the checkpoint"),
    ("cohort", {"cohort": 4}, "cohort is 4 now, but 5 in the checkpoint"),
    ("batch", {"batch_size": None}, "batch_size is None now, but 40 in the checkpoint"),
    ("weights", {"weights": "samples"}, "weights is 'samples' now"),
    ("algorithm", {"name": "fedlada"}, "name is 'fedlada' now, but 'scaffold' in the checkpoint"),
    ("data", {"fed": other_data()}, "the data differ"),
    ("split", {"fed": digits_fed(clients=12, concentration=0.4)}, "the data differ"),
    ("clients", {"fed": digits_fed(clients=13)}, "the data differ"),
    ("smaller model", {"model": small_net(4)}, "the model differ"),
    ("larger model", {"model": small_net(40)}, "the model differ"),
    ("dtype", {"dtype": torch.float64}, "dtype is 'torch.float64' now, but 'torch.float32' in the checkpoint"),
    ("loss", {"loss": nn.functional.multi_margin_loss}, "loss is 'torch.nn.functional.multi_margin_loss' now"),
    ("fewer rounds", {"rounds": 1}, "beyond rounds = 1"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    train(rounds=3, out=out)
    return out


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_changed_settings_are_refused_and_the_old_run_still_resumes(
    tmp_path: Path, finished: Path, change: dict[str, Any], message: str
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        train(out=out, resume=True, **change)
    assert "\n" not in str(error.value)
    same(train(out=out, resume=True), train())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_to_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def foreign(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path)


def foreign_with_metadata(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path, {"format": "pt"})


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("dear diary\n" * 100)


def noise(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(10_000))


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [cut, cut_to_the_header, foreign, foreign_with_metadata, empty, text, noise, directory]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path, finished: Path, damage: Callable[[Path], None]) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for name in (CHECKPOINT, PREVIOUS):
        damage(out / name)
    with pytest.raises(ValueError, match=r"^checkpoint: .*checkpoint\.safetensors (is damaged|was not written by)") as error:
        train(out=out, resume=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["deleted", "cut", "of another run"])
def test_lost_client_memory_is_not_replaced_by_zeros(tmp_path: Path, finished: Path, damage: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    memory = out / "clients.bin"
    content = memory.read_bytes()
    memory.unlink()
    if damage == "cut":
        memory.write_bytes(content[:10])
    if damage == "of another run":
        train(rounds=3, seed=1, out=tmp_path / "other")
        shutil.copy(tmp_path / "other" / "clients.bin", memory)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"resume: .*clients\.bin is not the client memory of the checkpoint") as error:
            train(out=out, resume=True)
        assert "\n" not in str(error.value)
    memory.write_bytes(content)
    same(train(out=out, resume=True), train())


def test_a_copied_run_resumes(tmp_path: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    same(train(out=tmp_path / "copy", resume=True), train())
