"""An attack on run directories: no damage of a file and no failing write may change the result of a run in silence.

`make attack` runs the whole of it. Otherwise ATTACKS is small.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fedkeel as fk
from fedkeel.engine import loop
from fedkeel.errors import StorageError
from tests.tasks import digits_fed, small_net

pytestmark = pytest.mark.slow
ATTACKS = int(os.environ.get("FEDKEEL_ATTACKS", "10"))  # corruptions per method
METHODS = ("fedavg", "scaffold", "fedlada", "fadamgt", "gradma", "mime", "padamfed", "fedadam")
FILES = ("checkpoint.safetensors", "checkpoint-previous.safetensors", "clients.bin", "metrics.jsonl", "summary.json")
FED = digits_fed(clients=6)


def train(name: str, **kw: Any) -> fk.Run:
    settings: dict[str, Any] = {"rounds": 5, "cohort": 6, "local_steps": 1, "batch_size": 10, "engine": "sequential"}
    return fk.train(small_net(4), FED, name, **settings, **{"progress": False} | kw)


def stop(row: dict[str, Any]) -> None:
    if row["round"] == 3:
        raise InterruptedError


def damage(path: Path, rng: random.Random, old: Path) -> None:
    content = bytearray(path.read_bytes())
    way = rng.choice(["flip", "cut", "old", "zeros"]) if content else "old"
    if way == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if way == "cut":
        del content[rng.randrange(len(content)) :]
    if way == "zeros":
        start = rng.randrange(len(content))
        content[start : start + 64] = bytes(len(content[start : start + 64]))
    if way == "old":
        content = bytearray(old.read_bytes() if old.exists() else b"")
    path.write_bytes(content)


@pytest.mark.parametrize("name", METHODS)
def test_no_damage_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """After any damage the run is refused in one line, or ends with the bits of a run without damage."""
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
    straight = train(name)
    train(name, out=tmp_path / "seed", seed=1)  # files of another run
    with pytest.raises(InterruptedError):
        train(name, out=tmp_path / "good", progress=stop)
    names = [z for z in FILES if (tmp_path / "good" / z).exists()]
    refused = 0
    for number in range(ATTACKS):
        rng, out = random.Random(f"{name} {number}"), tmp_path / "attacked"
        shutil.copytree(tmp_path / "good", out)
        victim = rng.choice(names)
        damage(out / victim, rng, tmp_path / "seed" / victim)
        try:
            run = train(name, out=out, resume=True)
        except ValueError as error:
            refused += 1
            lines = str(error).count("\n")
        else:
            lines = 0
            assert torch.equal(run.params, straight.params), (number, victim)
            losses = [[row["train_loss"] for row in one.history] for one in (run, straight)]
            assert losses[0] == losses[1], (number, victim)
        assert lines == 0, (number, victim)
        shutil.rmtree(out)
    assert refused < ATTACKS, "most damage can be survived"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_write_that_fails_leaves_the_state_before_it(tmp_path: Path, code: int) -> None:
    """One run for every single call of os.write, os.fsync and os.replace (patched in Python) of a whole run."""
    options: dict[str, Any] = {"rounds": 3, "cohort": 6, "local_steps": 1, "batch_size": 10, "engine": "sequential"}
    straight = fk.train(small_net(4), FED, "scaffold", progress=False, **options)
    real = {name: getattr(os, name) for name in ("write", "fsync", "replace")}
    for failing in itertools.count(1):
        out, calls = tmp_path / str(failing), itertools.count(1)

        def guarded(name: str, calls: Any = calls, failing: int = failing) -> Any:
            def call(*words: Any) -> Any:
                if next(calls) == failing:
                    raise OSError(code, os.strerror(code))
                return real[name](*words)

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
            for name in real:
                patch.setattr(os, name, guarded(name))
            try:
                fk.train(small_net(4), FED, "scaffold", out=out, progress=False, **options)
            except StorageError:
                failed = True
            else:
                failed = False
        run = fk.train(small_net(4), FED, "scaffold", out=out, resume=True, progress=False, **options)
        assert torch.equal(run.params, straight.params), failing
        if not failed:
            break
    assert failing > 20, "a run writes more often than that"
