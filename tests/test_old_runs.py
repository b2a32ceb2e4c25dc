"""Run directories and study files that fedkeel 0.1.0 wrote still open, continue and report."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedkeel as fk

MADE = Path(__file__).parent / "fixtures" / "made_by_0.1.0.tar.xz"


@pytest.fixture
def made(fedkeel, tmp_path):
    """The unpacked directories; `fedkeel` has made them the working directory."""
    with tarfile.open(MADE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_stopped_run_continues_to_the_same_weights(fedkeel, made):
    code, out, _ = fedkeel("resume", "stopped")
    assert code == 0
    assert "6 rounds" in out
    then, now = load_file(made / "whole/model.safetensors"), load_file(made / "stopped/model.safetensors")
    assert then.keys() == now.keys()
    for name in then:  # the archive was made on another machine, so sums may round differently here
        torch.testing.assert_close(now[name], then[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["whole", "mime"])
def test_a_complete_run_is_shown_and_extended(fedkeel, made, name):
    code, out, _ = fedkeel("run", f"{name}/config.toml", "--out", name)
    assert code == 0
    assert "complete" in out
    run = fk.resume(name, rounds=8, progress=False)
    assert len(run.history) == 8
    first = [json.loads(line) for line in (made / name / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in first] == list(range(8))


def test_a_run_of_python_objects_continues(made):
    layer = nn.Linear(64, 10)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    fed = fk.load("digits").split("iid", clients=6, seed=0)
    run = fk.train(
        nn.Sequential(nn.Flatten(), layer), fed, fk.algorithm("padamfed"), rounds=6, cohort=6, local_epochs=1,
        batch_size=50, out="objects", resume=True, engine="sequential", progress=False,
    )  # fmt: skip
    assert len(run.history) == 6


def test_a_study_is_complete_and_its_report_opens(fedkeel, made):
    code, out, err = fedkeel("compare", "s.toml", "--out", "study", "--jobs", "1")
    assert code == 0
    assert "6 of 6 runs are complete already" in err
    assert "fedavg" in out
    assert fedkeel("report", "sweep")[0] == 0
    assert (made / "sweep/report.html").exists()


def test_an_old_study_continues_with_more_seeds(fedkeel, made):
    code, _, err = fedkeel("compare", "study/study.toml", "--out", "study", "--jobs", "1", "--seeds", "3")
    assert code == 0
    assert "6 of 8 runs are complete already" in err
