"""Own data on the command line: a table, a folder, a function, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedkeel as fk
from fedkeel.cli import app as cli
from fedkeel.data.load import short_name
from tests.data import formats

SMALL = ["--rounds", "2", "--clients", "3", "--cohort", "2", "--engine", "sequential", "--local-steps", "2"]


def fedkeel(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return int(stop.value.code or 0)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own").mkdir()
    rows = [f"{i % 30},h{i % 3},{'ill' if i % 30 > 15 else 'healthy'},{i * 0.37:.2f}" for i in range(90)]
    (tmp_path / "own" / "patients.csv").write_text("\n".join(["age,hospital,state,cost", *rows]))
    return tmp_path


TABLE = ["--data", "own/patients.csv", "--label", "state", "--key", "hospital", "--split", "by_key"]


def test_a_table(place: Path) -> None:
    assert fedkeel("run", *TABLE, *SMALL) == 0
    out = place / "runs" / "patients-fedavg-seed0"
    schema = json.loads((out / "schema.json").read_text())
    assert schema["classes"] == ["healthy", "ill"]
    assert json.loads((out / "summary.json").read_text())["final_accuracy"] is not None
    assert fedkeel("resume", str(out)) == 0
    assert fedkeel("run", *TABLE, *SMALL, "--schema", str(out), "--out", "again") == 0
    ours, theirs = (json.loads((z / "summary.json").read_text())["final_accuracy"] for z in (out, place / "again"))
    assert ours == theirs
    assert fedkeel("datasets", "show", "own/patients.csv", "--label", "state", "--split", "iid", "--clients", "3") == 0


def test_numbers_are_predicted(place: Path, capsys: Any) -> None:
    words = ["--data", "own/patients.csv", *SMALL, "--lr", "0.0001"]  # the default split needs classes, so it becomes iid
    assert fedkeel("run", *words) == 2
    assert "different numbers" in capsys.readouterr().err
    assert fedkeel("run", *words, "--regression", "--out", "r") == 0
    rows = [json.loads(line) for line in (place / "r" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["test_accuracy"] is None
    assert rows[-1]["test_loss"] > 0


def test_a_folder_and_a_function(place: Path) -> None:
    formats.put(place / "pets", {f"{kind}/{i}.png": formats.picture(8)[0] for kind in "ab" for i in range(10)})
    assert fedkeel("run", "--data", "pets", "--image-size", "6", "--split", "iid", *SMALL, "--out", "f") == 0
    assert json.loads((place / "f" / "schema.json").read_text())["shape"] == [3, 6, 6]
    (place / "mydata.py").write_text(
        "import torch, fedkeel as fk\n"
        "def whole():\n    return fk.Dataset('mine', torch.rand(60, 4), torch.arange(60) % 3)\n"
        "def clients():\n    return whole().split(lambda labels: labels)\n"
    )
    for name in ("whole", "clients"):
        assert fedkeel("run", "--data", f"mydata:{name}", *SMALL, "--out", name) == 0


REFUSED = [
    (["--data", "own/no.csv"], "there is no file own/no.csv"),
    (["--data", "own/nothing"], "there is no file or folder own/nothing"),
    (["--data", "digit"], "unknown name 'digit'; did you mean digits?"),
    (["--label", "x"], "label: not allowed with data 'digits'"),
    (["--data", "own/patients.csv", "--label", "stat"], "has no column 'stat'; did you mean state"),
    (["--data", "own/patients.csv", "--missing", "zero"], "missing = 'zero' is not allowed"),
    (["--data", "own/patients.csv", "--label", "state", "--image-size", "9"], "size: not allowed with data"),
    (["--data", "json:loads", "--label", "x"], "data: json:loads failed: TypeError"),
    (["--data", "json:nothing"], "'json' has no 'nothing'"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_data_are_one_line(words: list[str], message: str, capsys: Any) -> None:
    assert fedkeel("run", *SMALL, "--out", "x", *words) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("data", "name"),
    [("digits", "digits"), ("a/patients.csv", "patients"), ("pets/", "pets"), ("hub:me/imdb", "imdb"), ("p.q:f", "f")],
)
def test_short_names(data: str, name: str) -> None:
    assert short_name(data) == name


def test_the_model_of_a_run_is_exported(place: Path, capsys: Any) -> None:
    assert fedkeel("run", "--data", "digits", "--split", "iid", *SMALL, "--validation", "0.2", "--out", "x") == 0
    assert fedkeel("export", "x", "best.safetensors", "--best") == 0
    best = load_file(place / "best.safetensors")
    expected = fk.open(place / "x").best.state_dict()
    assert best.keys() == expected.keys()
    assert all(torch.equal(best[name], z) for name, z in expected.items())
    assert fedkeel("export", "x", "model.h5") == 2
    assert ".onnx" in capsys.readouterr().err
