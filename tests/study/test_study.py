"""Studies: what a file expands to, searches, axes, runs side by side, failures, and going on after a stop."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from fedkeel.runs import config
from fedkeel.runs import named as runs
from fedkeel.study.changes import add_axes, choose_cases, choose_methods, override, set_values
from fedkeel.study.compare import run_study
from fedkeel.study.file import Range
from fedkeel.study.report.table_text import in_paper_units
from fedkeel.study.results.numbers import Outcome, curves, moments, of_run, robust_width, summarise
from fedkeel.study.running.plan import Trials
from fedkeel.study.running.reading import read_study
from fedkeel.study.running.scheduler import run_branches
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen


# What a file expands to -----------------------------------------------------------------------------------------------


def test_cases_methods_axes_and_seeds_are_combined():
    study = Study.read(
        TASK
        | {
            "seeds": [3, 5],
            "target": [0.5, 0.8],
            "methods": {
                "fedavg": {"lr": 0.2, "weight_decay": 0.01},
                "short": {"algorithm": "padamfed", "over": {"lr": "gamma"}},
            },
            "cases": [{"name": "A", "concentration": 1.0}, {"name": "B", "rounds": 7, "target": 0.4, "lr": 0.3}],
            "sweep": {"lr": [0.1, 1.0], "cohort": [2, 4]},
        }
    )
    assert len(study.branches) == 2 * 2 * 2 * 2
    assert (study.cases, study.methods) == (["A", "B"], ["fedavg", "short"])
    first, last = study.branches[0], study.branches[-1]
    assert first.name == "A | fedavg | lr = 0.1, cohort = 2"
    assert (first.targets, last.targets, first.seeds) == ((0.5, 0.8), (0.4,), (3, 5))
    run = first.at({}, 5, resplit=False)
    assert (run.concentration, run.weight_decay, run.cohort, run.seed, run.split_seed) == (1.0, 0.01, 2, 5, 0)
    assert run.hyperparameters["lr"] == 0.1  # the axis wins over the method's table
    run = last.at({}, 5, resplit=True)
    assert (run.algorithm, run.hyperparameters["gamma"], run.rounds, run.split_seed) == ("padamfed", 1.0, 7, 5)
    assert len({branch.slug for branch in study.branches}) == len(study.branches)


def test_a_method_without_the_axis_is_run_once():
    study = Study.read(TASK | {"methods": {"fedavg": {}, "gradma-s": {}}, "sweep": {"memory": [0, 10]}})
    assert [branch.name for branch in study.branches] == ["fedavg", "gradma-s | memory = 0", "gradma-s | memory = 10"]


def test_what_the_command_line_says_wins_over_cases_and_methods():
    file = TASK | {
        "methods": {"fedavg": {"local_epochs": 2, "lr": 0.1}},
        "cases": [{"name": "A", "rounds": 9}, {"name": "B b", "methods": {"fedavg": {"local_epochs": 3}}}],
        "paper": [{"metric": "best_accuracy", "values": {"fedavg": [1, 2]}}],
    }
    study = Study.read(override(file, {"rounds": 4, "local_steps": 5}))
    assert {(b.config.rounds, b.config.local_steps, b.config.local_epochs) for b in study.branches} == {(4, 5, None)}
    assert file["cases"][0]["rounds"] == 9  # the file itself is left alone
    kept = choose_cases(file, "b*")
    assert [case["name"] for case in kept["cases"]] == ["B b"]
    assert kept["paper"][0]["values"] == {"fedavg": [2]}
    with pytest.raises(ValueError, match="it must fit one of: A, B b"):
        choose_cases(file, "nothing")
    file = {"cases": [{"name": name} for name in ("CIFAR-10 S=5", "CIFAR-10 S=50", "CIFAR-100 S=5")]}
    for words, names in {"cifar-10": [0, 1], "CIFAR-10 s=5": [0], "cifar-1*": [0, 1, 2], "s=5": [0, 2]}.items():
        assert choose_cases(file, words)["cases"] == [file["cases"][i] for i in names]


def test_a_value_that_is_set_wins_over_that_of_a_case():
    case = {"name": "A", "lr": 0.5, "methods": {"fedprox": {"mu": 3.0, "lr": 0.4}}}
    file = {**TASK, "methods": {"fedavg": {}, "fedprox": {}, "fedcm": {}}, "cases": [case]}
    file = set_values(choose_methods(file, ""), ["fedavg.lr=0.2", "fedprox.mu=1", "fedprox.lr=0.1,0.3"])
    a, b, c = Study.read(file).branches
    assert (a.config.hyperparameters["lr"], c.config.hyperparameters["lr"]) == (0.2, 0.5)
    assert (b.config.hyperparameters["mu"], b.grid) == (1.0, {"lr": [0.1, 0.3]})


def test_a_recipe_with_other_axes_and_a_grid(fedkeel):
    words = ["--cases", "dirichlet", "--over", "lr=0.01,0.1", "--set", "scaffold-m.beta=0.1,0.3"]
    code, out, _ = fedkeel("reproduce", "ppf/fig2", "--data", "digits", "--model", "mlp", *words, "--show")
    file = tomllib.loads(out)
    assert code == 0
    assert file["sweep"] == {"lr": [0.01, 0.1]}
    assert file["methods"]["scaffold-m"]["beta"] == [0.1, 0.3]


def test_ranges():
    assert Range(**{"from": 1e-4, "to": 1.0, "per_decade": 1}).values() == [1e-4, 1e-3, 0.01, 0.1, 1.0]
    assert Range(**{"from": 1e-1, "to": 1.0}).values() == [0.1, 0.215, 0.464, 1.0]
    sweep = add_axes({}, ["lr=1e-2:1:1", "beta1=0,0.5", "batch-size=10,all"])["sweep"]
    assert sweep == {"lr": {"from": 0.01, "to": 1.0, "per_decade": 1}, "beta1": [0, 0.5], "batch_size": [10, "all"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": {}}, "algorithms: there are none"),
        ({"methods": {"fedavgg": {}}}, "fedavg"),
        ({"methods": {"fedavg": {"lr": [0.1, -1]}}}, "lr = -1 is not allowed"),
        ({"methods": {"fedavg": {"lr": []}}}, "the grid of lr has no values"),
        ({"methods": 3}, "methods: in a study file it must be tables"),
        ({"sweep": {"learning": [1]}}, "sweep: unknown name 'learning'"),
        ({"cases": [{"rounds": 3}]}, "every case must have a name"),
        ({"cases": [{"name": "A", "roundz": 3}]}, "unknown key 'roundz'; did you mean"),
        ({"cases": [{"name": "A", "methods": {"moon": {}}}]}, "moon is not among the methods: fedavg"),
        ({"search": {"way": "random"}}, "search.way = 'random' is not allowed"),
        ({"search": {"case": "B"}, "cases": [{"name": "A"}]}, "search: unknown case 'B'"),
        (
            {"paper": [{"metric": "best_accuracy", "values": {"fedavg": [1, 2]}}], "cases": [{"name": "A"}]},
            "2 numbers for 1",
        ),
        ({"methods": {"fedavg": {"cost": "3"}}}, "fedavg: cost = '3' is not allowed; it must be a number"),
        ({"methods": {"fedavg": {"cost": {"fixed": 3, "tracking": 1}}}}, "is not allowed; it must be a number >= 0, or for"),
        ({"seeds": 0}, "seeds = 0 is not allowed"),
        ({"seeds": [1, 1]}, "different seeds"),
        ({"target": 90}, "target = 90.0 is not allowed"),
        ({"seedz": 3}, "seedz: unknown setting; did you mean seed"),
    ],
)
def test_wrong_files(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Study.read(TASK | {"methods": {"fedavg": {}}} | changes)


# Searches -------------------------------------------------------------------------------------------------------------


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


# Running --------------------------------------------------------------------------------------------------------------


def test_side_by_side_and_one_by_one_find_the_same(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}, "scaffold": {}}, "seeds": 2, "target": 0.3})
    rows = [run_study(study, tmp_path / str(n), jobs=n, progress=False)["rows"] for n in (1, 3)]
    for one, other in zip(*rows, strict=True):
        for key in ("final_accuracy", "best_accuracy", "final_train_loss", "floats", "rounds_to_target"):
            assert one[key] == other[key]
    files = {path.name for path in (tmp_path / "3" / "fedavg-seed0").iterdir()}
    assert files == {"config.toml", "metrics.jsonl", "summary.json", "lock"}  # keep = false


def test_more_values_of_an_axis_run_only_those(fedkeel, tmp_path):
    words = ["sweep", "--algorithms", "fedavg", "--seeds", "1", "--rounds", "2", "--clients", "10", "--cohort", "2"]
    words += ["--model", "logistic", "--engine", "sequential"]
    assert fedkeel(*words, "--over", "lr=0.1,0.2")[0] == 0
    before = (tmp_path / "runs/sweep/fedavg-lr=0.1-seed0/metrics.jsonl").stat().st_mtime_ns
    code, out, err = fedkeel(*words, "--over", "lr=0.1,0.2,0.4")
    assert code == 0
    assert "2 of 3 runs are complete already" in err
    assert re.search(r"within 5 % of its best (over .* decades of lr|at one value of lr only)", out)
    assert (tmp_path / "runs/sweep/fedavg-lr=0.1-seed0/metrics.jsonl").stat().st_mtime_ns == before
    assert fedkeel(*words)[2].startswith("error: over: there is no axis")
    again = fedkeel("compare", "runs/sweep/study.toml", "--out", "runs/sweep")  # what a study writes can be run again
    assert (again[0], "3 of 3 runs are complete already" in again[2]) == (0, True)


def test_a_run_that_dies_takes_nothing_with_it(tmp_path, monkeypatch):
    whole = runs.run

    def dies(one, *rest, **options):
        if one.algorithm == "scaffold":
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(one, *rest, **options)

    monkeypatch.setattr("fedkeel.runs.named.run", dies)
    study = Study.read(TASK | {"methods": {"fedavg": {}, "scaffold": {}}, "seeds": 1})
    fedavg, scaffold = run_study(study, tmp_path, jobs=2, progress=False)["rows"]
    assert fedavg["seeds"] == 1
    assert scaffold["errors"] == {0: "its process died with exit code -9"}


def test_missing_data_of_one_case_stop_no_other(tmp_path):
    cases = [{"name": "here"}, {"name": "nowhere", "data": "no-such-data"}]
    study = Study.read(TASK | {"methods": {"fedavg": {}}, "cases": cases, "seeds": 1})
    here, nowhere = run_study(study, tmp_path / "a", progress=False)["rows"]
    assert (here["seeds"], nowhere["seeds"]) == (1, 0)
    assert "data: unknown name 'no-such-data'" in nowhere["errors"][0]
    alone = Study.read(TASK | {"methods": {"fedavg": {}}, "data": "no-such-data"})
    with pytest.raises(ValueError, match="data: unknown name"):
        run_study(alone, tmp_path / "b", progress=False)
    assert not (tmp_path / "b").exists()


def test_reading_a_study_that_is_half_done(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}, "scaffold": {}}, "seeds": 1})
    run_branches(Study.read(TASK | {"methods": {"fedavg": {}}, "seeds": 1}), tmp_path, progress=False)
    fedavg, scaffold = read_study(study, tmp_path)
    assert len(fedavg.outcomes[0].history) == 3
    assert scaffold.outcomes[0].error == "it has not been run"


@pytest.mark.slow
def test_ctrl_c_stops_all_runs_and_the_same_command_goes_on(tmp_path):
    words = [sys.executable, "-c", "from fedkeel.cli.app import main; main()", "compare", "--algorithms", "fedavg,scaffold"]
    words += ["--seeds", "1", "--rounds", "120", "--jobs", "2", "--engine", "sequential"]
    going = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for _ in range(600):
        if list(tmp_path.glob("runs/compare/*/metrics.jsonl")):
            break
        time.sleep(0.1)
    time.sleep(1)
    os.killpg(going.pid, signal.SIGINT)  # as a terminal does
    _, err = going.communicate(timeout=60)
    assert going.returncode == 130
    assert "interrupted; go on with: fedkeel compare" in err.splitlines()[-1]
    assert "Traceback" not in err
    started = {path.parent for path in tmp_path.glob("runs/compare/*/checkpoint.safetensors")}
    assert started
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert len(json.loads(Path(tmp_path, "runs/compare/results.json").read_text())["rows"]) == 2


# Numbers --------------------------------------------------------------------------------------------------------------


def test_numbers_of_a_run_by_hand():
    rows = [(0.1, 0.5), (0.6, 0.7), (None, 0.9), (0.8, 0.95)]
    history = [
        {
            "round": t,
            "test_accuracy": a,
            "train_accuracy": b,
            "train_loss": 1 / (t + 1),
            "up": 10,
            "down": 30,
            "seconds": 1.0,
            "dropped": 0,
        }
        for t, (a, b) in enumerate(rows)
    ]
    history[0] |= {"warmup_up": 5, "warmup_down": 7}
    found = of_run(Outcome("m", 0, history, memory_mb=12.0), [0.6, 0.8, 0.99], cost=3.5)
    assert (found["final_accuracy"], found["best_accuracy"], found["rounds_to_best"]) == (0.8, 0.8, 4)
    assert found["last10_accuracy"] == pytest.approx(0.5)
    assert (found["rounds_to_target"], found["rounds_to_second"]) == (2, 4)
    assert (found["floats_to_target"], found["up_to_target"], found["cost_to_second"]) == (92, 25, 14.0)
    assert "rounds_to_third" not in found
    assert (found["final_train_loss"], found["final_train_accuracy"], found["memory_mb"]) == (0.25, 0.95, 12.0)
    assert not any(key.startswith("at_") for key in found)
    found = of_run(Outcome("m", 0, history), [0.7, 0.9], on="train_accuracy")
    assert (found["rounds_to_target"], found["rounds_to_second"]) == (2, 3)
    assert (found["at_target_accuracy"], "at_second_accuracy" in found) == (0.6, False)  # not evaluated there
    early = [history[0] | {"test_accuracy": 0.3}] * 7  # of 11 rounds, the first is not among the last ten
    assert of_run(Outcome("m", 0, early + history), [])["last10_accuracy"] == pytest.approx((6 * 0.3 + 0.1 + 0.6 + 0.8) / 9)


def test_a_run_that_diverged_leaves_the_others_their_numbers():
    runs = [{"a": 1.0, "b": math.inf, "c": math.inf}, {"a": 3.0, "b": 1.0, "c": -math.inf}]
    assert moments("a", runs) == {"a": 2.0, "a_std": pytest.approx(2**0.5)}
    assert moments("b", runs) == {"b": math.inf, "b_std": None}
    assert math.isnan(moments("c", runs)["c"])
    rows = [{"test_accuracy": 0.5, "train_loss": z, "up": 1, "down": 1} for z in (1.0, math.nan, math.inf)]
    assert curves([Outcome("m", 0, rows)])["train_loss"] == {"0": [1.0, None, None]}


def test_seeds_that_miss_a_target_are_left_out_and_counted():
    def run(seed, *accuracies):
        rows = [{"test_accuracy": z, "up": 1, "down": 2, "seconds": 1.0, "dropped": 0} for z in accuracies]
        return Outcome("m", seed, rows)

    row = summarise("m", [run(0, 0.1, 0.6, 0.6), run(1, 0.1, 0.2, 0.3), run(2, 0.1, 0.2, 0.6)], [0.5, 0.9], 3, cost=2.0)
    assert (row["reached_target"], row["rounds_to_target"], row["rounds_to_target_std"]) == (2, None, None)
    assert (row["reached_rounds_to_target"], row["reached_rounds_to_target_std"]) == (2.5, pytest.approx(0.5**0.5))
    assert (row["reached_floats_to_target"], row["reached_cost_to_target"]) == (7.5, 5.0)
    assert (row["reached_second"], row["reached_rounds_to_second"]) == (0, None)
    assert in_paper_units(row, "rounds_to_target") == ">3 (2/3)"


def test_width_of_the_robust_interval():
    points = [(1.0, 0.1), (0.001, 0.5), (0.01, 0.96), (0.1, 1.0)]
    assert robust_width(points) == (pytest.approx(1.0), False)
    assert robust_width(points, share=0.5) == (pytest.approx(2.0), True)  # perhaps wider: the values end there
    assert robust_width([(1e-3, 0.99), (1e-2, 0.2), (1e-1, 1.0)]) == (0, True)  # not across a gap


def test_what_was_spent_without_reaching_the_target():
    row = {"seeds": 4, "rounds": 3000, "cost": 6000.0, "reached_target": 0, "rounds_to_target": None, "cost_to_target": None}
    row["errors"] = {}
    assert [in_paper_units(row, f"{kind}_to_target") for kind in ("rounds", "cost")] == [">3000", ">6000"]
    assert in_paper_units(row | {"reached_target": 3}, "cost_to_target") == ">6000 (3/4)"
