"""Generated input for the command line: no traceback, no exit code 1 for bad input, no hang.

`make attack` tries 10,000 commands. They run in this process, because a new one would take a second. Training is replaced by
nothing, so that only what happens before it is tested.
"""

from __future__ import annotations

import os
import random
import signal
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkeel.cli import app as cli

pytestmark = pytest.mark.slow
COUNT = int(os.environ.get("FEDKEEL_INPUTS", "300"))
SECONDS = 30  # a command that takes longer hangs
GROUPS = 10  # tests
COMMANDS = [
    "run",
    "run",
    "run",
    "compare",
    "resume",
    "report",
    "datasets",
    "algorithms",
    "deploy",
    "verify",
    "check",
    "choose",
]
OPTIONS = [
    *("--data", "--algorithm", "--rounds", "--clients", "--cohort", "--model", "--lr", "--seed", "--batch-size", "--split"),
    *("--concentration", "--local-steps", "--weights", "--engine", "--workers", "--timeout", "--device", "--out", "--clip"),
    *("--weight-decay", "--lr-decay", "--lr-schedule", "--participation", "--aggregation", "--uplink", "--attack"),
    *("--privacy", "--metrics", "--validation", "--evaluate-every", "--min-clients", "--beta1", "--mu", "--from", "--key"),
    *("--json", "--fresh", "--debugg", "--help", "--methods", "--seeds", "--target", "--over", "--set", "--jobs", "--plot"),
]
WORDS = [
    *("fedavg", "scaffold", "fedlada", "digits", "mlp", "logistic", "iid", "auto", "sequential", "0", "1", "-1", "1e400"),
    *(
        "nan",
        "inf",
        "-inf",
        "0.5",
        "1.0",
        "10",
        "99999999999999999999",
        "none",
        "None",
        "true",
        "all",
        "",
        " ",
        "=",
        "[",
        "]",
    ),
    *(
        "{}",
        "os:abort_",
        "sys:exit",
        "a.b:c",
        ":",
        "::",
        "hub:",
        "hf:",
        "/",
        "/dev/null",
        "..",
        "~",
        "*",
        "%s",
        "'",
        '"',
        "\\",
    ),
    *("x" * 5000, "ü", "日本", "\x1b[31m", "\n", "a=1,b=2", "topk:0.1", "topk:x", "median", "trimmed:2", "sign-flip:2"),
    *("cosine", "step:1,2", "warmup:x", "markov:on=2", "trace:/nowhere", "cuda:9", "meta", "hpu", "1,2,3", "[1, 2]", "0x10"),
]


def word(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(WORDS)
    letters = string.printable + "äß€\u202e\U0001f600"
    return "".join(rng.choice(letters) for _ in range(rng.randrange(1, 12))).replace("\0", "")


def command(rng: random.Random, folder: Path) -> list[str]:
    words = [rng.choice(COMMANDS)]
    if words[0] == "datasets":
        words += rng.choice([["show"], []])
    if words[0] == "deploy":
        words += [rng.choice(["init", "picture", word(rng)])]
    if rng.random() < 0.5:
        words.append(rng.choice([str(folder / "study.toml"), str(folder), word(rng)]))
    for _ in range(rng.randrange(0, 5)):
        words += [rng.choice(OPTIONS), word(rng)] if rng.random() < 0.9 else [word(rng)]
    return words


TOML = [
    "rounds = 1\n",
    'data = "digits"\n',
    "[methods.fedavg]\n",
    "lr = [1, 2]\n",
    "lr = -1\n",
    "[sweep]\n",
    "a = [[[\n",
    "x" * 300,
]
TOML += [
    "[methods]\n",
    'device = "meta"\n',
    "timeout = 0\n",
    "seeds = 99\n",
    "[cases.a]\n",
    "rounds = {}\n",
    'algorithms = ["x"]\n',
]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkeel.engine.loop import Trainer

    def nothing(self: Trainer, report: Any) -> Any:
        raise ValueError("enough")

    monkeypatch.setattr(Trainer, "fit", nothing)


@pytest.fixture
def alarm() -> Iterator[None]:
    def hangs(number: int, frame: Any) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_training", "alarm")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_input_is_understood_or_refused_in_one_line(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    bad = []
    for number in range(group, COUNT, GROUPS):
        rng = random.Random(f"input {number}")
        (tmp_path / "study.toml").write_text("".join(rng.choice(TOML) for _ in range(rng.randrange(0, 6))))
        words = command(rng, tmp_path)
        signal.alarm(SECONDS)
        try:
            cli.main(words)
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = repr(error)
        signal.alarm(0)
        said = capsys.readouterr()
        wrong = code not in (0, 2) and "runs failed" not in said.out and "failed:" not in said.out + said.err
        if wrong or "Traceback" in said.err + said.out or "error: unexpected " in said.err:
            bad.append((number, [z[:60] for z in words], code, said.err[-200:]))
    assert not bad, f"{len(bad)}: {bad[:5]}"


@pytest.mark.usefixtures("no_training")
def test_choose_says_in_one_line_that_every_trial_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["choose", "--algorithms", "fedavg,fedprox", "--rounds", "2", "--budget", "20runs", "--jobs", "1"])
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert "every trial failed: " in said
    assert "unexpected" not in said
