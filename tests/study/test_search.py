"""Searches of grids: which trials run, what decides, and what is chosen."""

import itertools
import json
import math
import re

import pytest

from fedkeel.runs import config
from fedkeel.study.compare import run_study
from fedkeel.study.results.numbers import of_run
from fedkeel.study.running.search import Trials
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen


def read(**changes):
    return Study.read(TASK | {"methods": {"fedavg": {}}} | changes)


def walk(trials, worth):
    """Runs a search whose scores are known -> the trials in order."""
    tried = []
    for wave in trials.waves():
        for values in wave:
            tried.append(values)
            trials.scores.append((values, worth(values)))
    return tried


def test_a_grid_search_tries_all_and_takes_the_first_best():
    trials = Trials({"a": [1, 2, 3], "b": [1, 2]}, "grid", "best_accuracy")
    tried = walk(trials, lambda v: None if v["a"] == 3 else v["a"])  # a = 3 diverges
    assert (len(tried), trials.count(), trials.best()) == (6, 6, {"a": 2, "b": 1})
    less = Trials({"a": [1, 2, 3]}, "grid", "rounds_to_target")
    walk(less, lambda v: v["a"])
    assert less.best() == {"a": 1}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_none(score):
    for metric in ("best_accuracy", "final_train_loss"):
        trials = Trials({"a": [1, 2, 3]}, "grid", metric)
        walk(trials, lambda v: 1.0 if v["a"] == 2 else score)
        assert trials.best() == {"a": 2}


def test_a_coordinate_search_goes_key_by_key():
    trials = Trials({"a": [1, 2, 3], "b": [1, 2, 3]}, "coordinate", "best_accuracy")
    tried = walk(trials, lambda v: v["a"] - abs(v["b"] - 1))
    assert trials.best() == {"a": 3, "b": 1}
    assert [tuple(v.values()) for v in tried] == [(1, 2), (2, 2), (3, 2), (3, 1), (3, 3)]
    assert trials.count() == len(tried)


def test_the_choice_of_a_search_is_run_with_all_seeds(tmp_path):
    grid = {"fedavg": {"lr": [1e-6, 0.1]}, "fedprox": {"mu": 0.1, "lr": [0.1, 1e38]}}
    study = Study.read(TASK | {"methods": grid, "seeds": 2, "search": {"seed": 77, "rounds": 2}})
    results = run_study(study, tmp_path, progress=False)
    assert [row["chosen"] for row in results["rows"]] == [{"lr": 0.1}, {"lr": 0.1}]
    trials = {one["name"]: one["trials"] for one in results["search"]}
    assert [z["chosen"] for z in trials["fedavg"]] == [False, True]
    diverged = trials["fedprox"][1]  # which is no failure of the study
    assert (diverged["lr"], diverged["score"], diverged["chosen"]) == (1e38, None, False)
    assert "NotFinite" in diverged["error"]
    assert not any(row["errors"] for row in results["rows"])
    for seed in (0, 1):
        assert config.read(tmp_path / f"fedavg-seed{seed}" / "config.toml").hyperparameters["lr"] == 0.1
    tried = config.read(tmp_path / "search" / "fedavg-lr=1e-06-seed77" / "config.toml")
    assert (tried.rounds, tried.seed) == (2, 77)
    again = run_study(study, tmp_path, progress=False)
    assert again["rows"] == results["rows"]


def test_a_search_in_one_case_serves_all(tmp_path):
    cases = [{"name": "A", "concentration": 10.0}, {"name": "B", "concentration": 0.5}]
    study = Study.read(
        TASK | {"methods": {"fedavg": {"lr": [1e-6, 0.1]}}, "cases": cases, "seeds": 1, "search": {"case": "B"}}
    )
    results = run_study(study, tmp_path, progress=False)
    assert [row["chosen"] for row in results["rows"]] == [{"lr": 0.1}] * 2
    assert [path.name for path in (tmp_path / "search").iterdir()] == ["B"]


GRID = {"methods": {"fedavg": {"lr": [0.1, 0.2]}}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"search": {"metric": "final_acuracy"}},
            "search: metric = 'final_acuracy' is not allowed; did you mean final_accuracy",
        ),
        ({"search": {"metric": "final_drift"}}, "search: metric = 'final_drift' needs metrics = ['drift']"),
        ({"search": {"metric": "rounds_to_target"}}, "search: metric = 'rounds_to_target' needs a target"),
        ({"search": {"metric": "up_to_second"}, "target": 0.5}, "search: metric = 'up_to_second' needs more targets"),
        (
            {"search": {"metric": "at_target_accuracy"}, "target": 0.5},
            "'at_target_accuracy' needs target_on = 'train_accuracy'",
        ),
        ({"search": {"metric": "cost"}}, "search: metric = 'cost' needs a cost in the method's table, for fedavg"),
        (
            {"search": {"metric": "final_objective"}, "metrics": ["train"]},
            "metric = 'final_objective' needs weight_decay > 0",
        ),
        ({"search": {"metric": "final_client_accuracy"}}, "metric = 'final_client_accuracy' needs a method with layers of"),
        ({"search": {"seed": 0}}, "search: seed = 0 is not allowed; it is one of the seeds of fedavg, so the choice"),
        ({"seeds": [5, 1000]}, "search: seed = 1000 is not allowed; it is one of the seeds"),
        (
            {"paper": [{"metric": "best_acuracy", "values": {"fedavg": [1]}}]},
            "paper: metric = 'best_acuracy' is not allowed",
        ),
    ],
)
def test_what_a_search_or_paper_cannot_go_by(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read(**(GRID | changes))


def test_what_a_search_can_go_by():
    methods = {"fedavg": {"lr": [0.1, 0.2], "weight_decay": [0.0, 0.1], "cost": 2}}
    for metric in ("final_objective", "final_tracking_bias", "cost_to_second", "cost", "memory_mb"):
        changes = {"metrics": ["train"] if "objective" in metric else [], "target": [0.5, 0.6]}
        if "tracking" in metric:
            changes |= {"metrics": ["tracking"], "methods": {"scaffold": {"lr": [0.1, 0.2]}}}
        assert read(**({"methods": methods} | changes), search={"metric": metric}).search.metric == metric
    paper = [{"metric": "rounds_to_second", "values": {"fedavg": [1]}}]
    assert read(paper=paper).paper  # a paper may have numbers for more than is asked here
    assert read(search={"seed": 0}).branches  # there is nothing to search


def test_a_grid_may_be_over_rounds(tmp_path):
    task = TASK | {"rounds": 2, "target": 0.99, "evaluate_every": 1}
    study = Study.read(task | {"methods": {"fedavg": {"rounds": [3], "evaluate_every": [3]}}, "seeds": 1})
    row = run_study(study, tmp_path, jobs=1, progress=False)["rows"][0]
    assert (row["rounds"], row["evaluate_every"], row["reached_target"]) == (3, 3, 0)


def test_a_choice_must_fit_all_cases():
    cases = [{"name": "a"}, {"name": "b", "methods": {"fedavg": {"server_lr": 0.5}}}]
    grids = {"methods": {"fedavg": {"lr": [0.1, 0.2], "server_lr": [0.5, 2.0]}}, "cases": cases}
    for case in ("a", "b"):
        with pytest.raises(ValueError, match=f"case = '{case}' is not allowed: server_lr of fedavg is searched in some"):
            read(**grids, search={"case": case})
    assert len(read(**grids).branches) == 2


def test_a_loss_that_is_no_number_is_never_the_least(tmp_path, monkeypatch):
    whole = of_run

    def diverges(outcome, *rest):
        return whole(outcome, *rest) | ({"final_train_loss": math.nan} if next(trial) == 0 else {})

    trial = itertools.count()
    monkeypatch.setattr("fedkeel.study.running.plan.of_run", diverges)
    study = read(methods={"fedavg": {"lr": [0.01, 0.3, 0.02]}}, seeds=1, search={"metric": "final_train_loss"})
    results = run_study(study, tmp_path, jobs=1, progress=False)
    assert results["rows"][0]["chosen"] == {"lr": 0.3}
    assert [z["score"] is None for z in results["search"][0]["trials"]] == [True, False, False]


def test_a_search_that_could_score_nothing_says_so(fedkeel, tmp_path):
    words = [
        "compare",
        "--algorithms",
        "fedavg,fedprox",
        "--seeds",
        "1",
        "--target",
        "0.999",
        "--set",
        "fedavg.lr=0.1,0.2,0.3",
    ]
    flags = [word for key, z in TASK.items() for word in (f"--{key.replace('_', '-')}", str(z))]
    code, out, _ = fedkeel(*words, *flags, "--search", "metric=rounds_to_target")
    told = "no trial has rounds_to_target, so the middle of every list was taken"
    assert code == 0
    assert out.count(f"search: fedavg: {told}: lr 0.2\n") == out.count("search:") == 1
    assert told in (tmp_path / "runs/compare/report.html").read_text()
    assert json.loads((tmp_path / "runs/compare/results.json").read_text())["search"][0]["trials"][1]["chosen"]
