"""What people type first, and what they type second: it works, or the answer says what to type instead."""

import json
from pathlib import Path

import pytest

from fedkeel.engine.state import directory
from fedkeel.runs.saved_config import saved_config

TINY = ["--clients", "5", "--rounds", "2", "--local-steps", "1", "--model", "logistic", "--engine", "sequential"]


def test_a_method_without_an_option(fedkeel):
    code, out, _ = fedkeel("run", "FedAvg", *TINY)
    assert code == 0
    assert "runs/digits-fedavg-seed0" in out
    assert saved_config("runs/digits-fedavg-seed0").cohort == 5  # the default of 10 is more than there are


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--algorithm", "SCAFFOLD"], {"algorithm": "scaffold"}),
        (["--algorithm", "scaffold_m"], {"algorithm": "scaffold-m"}),
        (["--split", "dirichlet"], {"split": "dirichlet_per_class"}),
        (["--split", "IID"], {"split": "iid"}),
        (["--data", "Digits"], {"data": "digits"}),
    ],
)
def test_names_are_not_case_sensitive_and_aliases_work(fedkeel, words, kept):
    assert fedkeel("run", *TINY, *words, "--out", "x")[0] == 0
    config = saved_config("x")
    assert {key: getattr(config, key) for key in kept} == kept


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("run --alpha 0.1", "for the Dirichlet split write --concentration 0.1"),
        ("run --beta1 0.9", "fedavg has no beta1 (fedavg has --lr, --server-lr); methods with it:"),
        ("run --learning-rate 0.1", "did you mean --lr?"),
        ("run fedavgg", "neither a file nor a method; did you mean fedavg"),
        ("run scaffold --algorithm fedavg", "it is scaffold and fedavg"),
        ("train", "To train one method: fedkeel run"),
        ("reproduce gradma/tab1 --json", "--json belongs to --list"),
    ],
)
def test_other_guesses_are_answered_in_one_line(fedkeel, words, answer):
    code, _, err = fedkeel(*words.split())
    assert code == 2
    assert answer in err
    assert len(err.strip().splitlines()) == 1


def test_a_second_run_with_other_settings_has_a_directory_of_its_own(fedkeel):
    fedkeel("run", *TINY, "--lr", "0.01")
    code, out, _ = fedkeel("run", *TINY, "--lr", "0.02")
    assert code == 0
    assert "this one goes to runs/digits-fedavg-seed0-lr=0.02" in out
    assert "complete" in fedkeel("run", *TINY, "--lr", "0.02")[1]
    assert "complete" in fedkeel("run", *TINY, "--lr", "0.01")[1]
    assert saved_config("runs/digits-fedavg-seed0").hyperparameters["lr"] == 0.01
    assert saved_config("runs/digits-fedavg-seed0-lr=0.02").hyperparameters["lr"] == 0.02


def test_resume_extends_a_run(fedkeel):
    fedkeel("run", *TINY, "--out", "x")
    before = directory.history(Path("x"))
    code, _, err = fedkeel("run", *TINY, "--rounds", "4", "--out", "x")
    assert code == 2
    assert "fedkeel resume x --rounds 4" in err
    assert fedkeel("resume", "x", "--rounds", "4")[0] == 0
    after = directory.history(Path("x"))
    assert after[:2] == before
    fedkeel("run", *TINY, "--rounds", "4", "--out", "y")
    assert [row["train_loss"] for row in directory.history(Path("y"))] == [row["train_loss"] for row in after]
    code, _, err = fedkeel("resume", "x", "--rounds", "3")
    assert code == 2
    assert "has 4 rounds already" in err


@pytest.mark.slow
def test_a_study_is_extended_by_rounds_seeds_and_methods(fedkeel):
    words = ["compare", *TINY[:-2], "--engine", "sequential", "--out", "s"]
    assert fedkeel(*words, "--algorithms", "fedavg", "--seeds", "1")[0] == 0
    assert fedkeel(*words, "--algorithms", "FedAvg,scaffold", "--seeds", "2", "--rounds", "3")[0] == 0
    rows = json.loads(Path("s/results.json").read_text())["rows"]
    assert [(row["method"], row["seeds"], row["rounds"]) for row in rows] == [("fedavg", 2, 3), ("scaffold", 2, 3)]


def test_a_study_can_be_deployed_by_naming_its_method(fedkeel):
    fedkeel("compare", *TINY, "--algorithms", "fedavg,scaffold", "--set", "scaffold.lr=0.5", "--seeds", "1", "--out", "s")
    code, _, err = fedkeel("deploy", "init", "app", "--from", "s")
    assert code == 2
    assert "which method? the study has fedavg, scaffold; for example --method " in err
    assert fedkeel("deploy", "init", "app", "--from", "s", "--method", "scaffold")[0] == 0
    text = Path("app/pyproject.toml").read_text()
    assert 'algorithm = "scaffold"' in text
    assert "lr = 0.5" in text


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("algorithms", "floats"),
        ("datasets", "here"),
        ("reproduce --list", "runs"),
    ],
)
def test_every_listing_has_json(fedkeel, words, key):
    code, out, _ = fedkeel(*words.split(), "--json")
    assert code == 0
    assert all(row["name"] and key in row for row in json.loads(out))


def test_json_of_one_method_and_of_a_split(fedkeel):
    found = json.loads(fedkeel("algorithms", "fedadam", "--json")[1])
    assert {"lr", "beta1"} <= {one["name"] for one in found["hyperparameters"]}
    found = json.loads(fedkeel("datasets", "show", "digits", "--clients", "3", "--json")[1])
    assert [sum(row) for row in found["counts"]] == found["clients"]["samples"]
