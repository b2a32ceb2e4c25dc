"""Damage to the files of a run is noticed, and a run goes on from the checkpoint before a damaged one."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import fedkeel as fk
from fedkeel.engine import loop
from fedkeel.engine.state import directory
from fedkeel.engine.state.checkpoint import load_checkpoint
from fedkeel.errors import Busy, Damaged
from fedkeel.files import Claim
from tests.processes import forked, kill, until
from tests.tasks import digits_fed, small_net

FED = digits_fed(clients=12)
CHECKPOINT, PREVIOUS, CLIENTS, HISTORY = (
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
    "clients.bin",
    "metrics.jsonl",
)


def train(**kw: Any) -> fk.Run:
    settings: dict[str, Any] = {"rounds": 6, "cohort": 5, "batch_size": 40, "engine": "sequential", "progress": False, **kw}
    return fk.train(small_net(), FED, "scaffold", **settings)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its fourth round, with a checkpoint after every round."""

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            raise InterruptedError

    out = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
        with pytest.raises(InterruptedError):
            train(out=out, progress=stop)
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def place_of(path: Path, name: str) -> int:
    """Where a tensor begins in a safetensors file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return 8 + size + int(json.loads(content[8 : 8 + size])[name]["data_offsets"][0])


STRAIGHT = train().params


def flip_tensor(run: Path) -> None:
    flip(run / CHECKPOINT, place_of(run / CHECKPOINT, "server.x") + 5, bit=3)


def flip_facts(run: Path) -> None:
    flip(run / CHECKPOINT, place_of(run / CHECKPOINT, "facts") + 40)


def flip_round(run: Path) -> None:
    content = (run / CHECKPOINT).read_bytes()
    (run / CHECKPOINT).write_bytes(content.replace(b'"round":"4"', b'"round":"3"'))


def lose_checkpoint(run: Path) -> None:
    (run / CHECKPOINT).unlink()


def flip_last_row(run: Path) -> None:
    flip(run / HISTORY, len((run / HISTORY).read_bytes()) - 40)


def flip_new_record(run: Path) -> None:
    """In a record that only the last checkpoint points to."""
    last, before = (set(load_checkpoint(run / name).tensors["store.slots"].tolist()) for name in (CHECKPOINT, PREVIOUS))
    size = 64 * -(-STRAIGHT.numel() * 4 // 64)
    flip(run / CLIENTS, 64 + min(last - before) * size + 100)


@pytest.mark.parametrize(
    "damage",
    [flip_tensor, flip_facts, flip_round, lose_checkpoint, flip_last_row, flip_new_record],
    ids=lambda z: z.__name__,
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    run: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run)
    with caplog.at_level(logging.WARNING, "fedkeel"):
        result = train(out=run, resume=True)
    assert "goes on from the checkpoint before it, at round 3" in caplog.text
    assert torch.equal(result.params, STRAIGHT)
    assert len(directory.history(run, 6)) == 6
    caplog.clear()
    train(out=run, resume=True)
    assert not caplog.text, "the damage is mended"


def test_a_record_that_both_checkpoints_need_is_not_replaced(run: Path) -> None:
    both = [set(load_checkpoint(run / name).tensors["store.slots"].tolist()) for name in (CHECKPOINT, PREVIOUS)]
    size = 64 * -(-STRAIGHT.numel() * 4 // 64)
    flip(run / CLIENTS, 64 + min(both[0] & both[1]) * size + 100)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"clients\.bin is damaged: the checksum of client \d+"):
            train(out=run, resume=True)


def test_a_damaged_row_that_both_checkpoints_need_is_refused(run: Path) -> None:
    flip(run / HISTORY, 30)
    with pytest.raises(Damaged, match=r"metrics\.jsonl is damaged: line 1 "):
        train(out=run, resume=True)
    with pytest.raises(ValueError, match="line 1 is damaged"):
        directory.history(run)


def test_a_half_line_at_the_end_is_cut_off(run: Path) -> None:
    with open(run / HISTORY, "a") as file:
        file.write('{"round": 4, "train_lo')
    assert len(directory.history(run)) == 4
    train(out=run, resume=True)
    assert [row["round"] for row in directory.history(run)] == list(range(6))


def test_the_history_is_not_part_of_the_header(run: Path) -> None:
    """Thousands of dropped clients would make the header larger than the format allows."""
    with safe_open(run / CHECKPOINT, framework="np") as file:
        header = json.dumps(file.metadata())
    assert "train_loss" not in header
    assert len(header) < 2000


def test_a_config_that_was_changed_by_accident_is_refused(tmp_path: Path) -> None:
    from fedkeel.runs import from_config
    from fedkeel.runs.config import RunConfig

    config = RunConfig(data="digits", clients=5, cohort=5, rounds=2, local_steps=1, engine="sequential")
    from_config.train(config, tmp_path, progress=False)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(Damaged, match=r"config\.toml is not what the run wrote"):
        fk.resume(tmp_path, progress=False)


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_model_of_a_complete_run_is_noticed(fedkeel: Any, tmp_path: Path, how: str) -> None:
    sizes = ("--clients", "5", "--cohort", "5", "--rounds", "2", "--local-steps", "1")
    assert fedkeel("run", "--data", "digits", *sizes, "--engine", "sequential", "--out", "x")[0] == 0
    model = tmp_path / "x" / "model.safetensors"
    before = model.read_bytes()
    if how == "missing":
        model.unlink()
    else:
        flip(model, len(before) - 3)
    code, _, err = fedkeel("resume", "x")
    assert code == 0
    assert "model.safetensors is " + ("missing" if how == "missing" else "damaged") in err
    assert model.read_bytes() == before
    assert "complete" in fedkeel("resume", "x")[1]


class Counter:
    """A part of a run with a state of its own."""

    def __init__(self) -> None:
        self.count, self.vector = 0, torch.zeros(3)

    def saved(self) -> dict[str, Any]:
        return {"count": self.count, "vector": self.vector}

    def restore(self, saved: dict[str, Any]) -> None:
        self.count, self.vector = saved["count"], saved["vector"]


def test_parts_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    from fedkeel.engine.state.checkpoint import save_checkpoint

    class Server:
        def _asdict(self) -> dict[str, torch.Tensor]:
            return {"x": torch.ones(2)}

    part, again = Counter(), Counter()
    part.count, part.vector = 5, torch.arange(3.0)
    save_checkpoint(tmp_path / CHECKPOINT, tmp_path / PREVIOUS, 1, Server(), {}, {}, {"counter": part})
    again.restore(load_checkpoint(tmp_path / CHECKPOINT).parts["counter"])
    assert (again.count, again.vector.tolist()) == (5, [0.0, 1.0, 2.0])


# Locks ----------------------------------------------------------------------------------------------------------------


def test_two_threads_cannot_train_in_one_directory(tmp_path: Path) -> None:
    errors: list[Exception] = []
    inside, go_on = threading.Event(), threading.Event()

    def wait(row: dict[str, Any]) -> None:
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: train(out=tmp_path, progress=wait))
    thread.start()
    try:
        assert inside.wait(60)
        with pytest.raises(Busy, match="another process is training in"):
            train(out=tmp_path, resume=True)
        # The refused attempt must not have dropped the lock for other processes.
        refused = tmp_path / "refused"

        def attempt() -> None:
            try:
                Claim(tmp_path / "lock", "x")
            except Busy:
                refused.touch()

        with forked(attempt) as child:
            child.join(60)
        assert refused.exists()
    finally:
        go_on.set()
        thread.join(60)
    assert not errors
    assert torch.equal(train(out=tmp_path, resume=True).params, STRAIGHT)


def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    """Workers may live a moment longer than a run that was killed."""
    claim = Claim(tmp_path / "lock", "taken")
    with forked(lambda: until(lambda: False, seconds=60)) as child:
        claim.release()
        Claim(tmp_path / "lock", "taken").release()
        kill(child)


def test_a_failed_run_gives_its_directory_back_though_its_traceback_lives(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError) as error:
        train(out=tmp_path, progress=stop)
    train(out=tmp_path, resume=True)
    assert error.value is not None


def test_a_symlink_in_the_place_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    for name in ("config.toml", CHECKPOINT, "model.safetensors"):
        (tmp_path / "run" / f"{name}.part").symlink_to(victim)
    train(out=tmp_path / "run", rounds=1)
    assert victim.read_text() == "precious"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [SystemExit(0), Mute()], ids=["SystemExit", "an exception without a text"])
def test_a_client_that_raises_something_strange_is_dropped(error: BaseException) -> None:
    calls = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 5:
            raise error
        return torch.nn.functional.cross_entropy(output, target)

    run = train(rounds=1, loss=loss, local_steps=1)
    assert list(run.history[0]["faults"].values()) == [
        type(error).__name__ + (": 0" if isinstance(error, SystemExit) else "")
    ]
