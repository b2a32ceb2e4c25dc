"""Studies and pages of tasks without classes: they show the test loss and own metrics, not dashes for accuracies."""

import json
import re

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.study.report.write import report

ROUNDS = 6


@pytest.fixture(scope="module")
def fed():
    draw = torch.Generator().manual_seed(0)
    truth = torch.tensor([[1.0], [2.0], [-1.0]])
    x = [torch.randn(40, 3, generator=draw) for _ in range(6)]
    return fk.Federation.from_arrays([(z, z @ truth) for z in x[:5]], test=(x[5], x[5] @ truth))


def make():
    return nn.Linear(3, 1)


SETTINGS = {"rounds": ROUNDS, "cohort": 5, "local_steps": 2, "loss": nn.functional.mse_loss, "progress": False}


def page_of(text):
    """(the heads of the first table, the points of every line by figure)."""
    heads = [re.sub("<.*?>", "", z).strip() for z in re.findall(r"<th.*?>(.*?)</th>", text.partition("</thead>")[0], re.S)]
    drawn = json.loads(re.search(r'id="found">(.*?)</script>', text)[1])
    return heads, drawn


def test_the_page_of_a_run_has_its_test_loss_over_all_rounds(fed, tmp_path):
    run = fk.train(make, fed, "fedavg", out=tmp_path, **SETTINGS)
    text = report(tmp_path).read_text()
    heads, drawn = page_of(text)
    assert not [head for head in heads if "accuracy" in head]
    assert any("final test loss" in head for head in heads)
    assert f"{run.history[-1]['test_loss']:.4g}" in text
    assert len(drawn["/test_loss-rounds"]["series"][0]["y"]) == ROUNDS
    assert len(drawn["/train_loss-rounds"]["series"][0]["y"]) == ROUNDS
    title = re.search(r"<title>(.*?)</title>", text)[1]
    assert "fedavg" in title
    assert "Comparison" not in title


def test_a_study_compares_by_the_test_loss_and_the_least_is_best(fed, tmp_path):
    fast = fk.algorithm("fedavg", lr=0.2)
    study = fk.compare(make, fed, [fk.algorithm("fedavg", lr=0.001), fast], seeds=2, out=tmp_path, **SETTINGS)
    assert study.results["compared_by"] == "final_test_loss"
    assert study.best == fast
    last = study.frame[study.frame["round"] == ROUNDS - 1].groupby("method").test_loss.mean()
    assert study.table.set_index("method").final_test_loss.to_dict() == pytest.approx(last.to_dict())
    heads, drawn = page_of((tmp_path / "report.html").read_text())
    assert not [head for head in heads if "accuracy" in head]
    assert len(drawn["/test_loss-rounds"]["series"]) == 2
    assert "final test loss" in repr(study)


def test_a_sweep_draws_the_test_loss(fed):
    study = fk.sweep(make, fed, ["fedavg"], over={"lr": [0.001, 0.2]}, seeds=1, **SETTINGS)
    assert "test loss" in study.plot().axes[0].get_ylabel()
    assert study.best.lr == 0.2


def test_classes_keep_their_accuracies():
    fed = fk.load("digits").split("iid", clients=3)
    study = fk.compare("logistic", fed, ["fedavg"], seeds=1, rounds=1, progress=False, engine="sequential")
    assert "final_test_loss" not in study.table
    assert study.results["compared_by"] == "final_accuracy"
