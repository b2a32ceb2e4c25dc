"""Comparisons: the numbers of the table, what is run again and what is not, failures, and the page."""

import csv
import json
import re
import statistics

import pytest

from fedkeel.engine.state import directory
from fedkeel.runs import config, from_config
from fedkeel.runs.config import RunConfig
from fedkeel.study.compare import run_study
from fedkeel.study.report.table_text import screen_row
from fedkeel.study.results.numbers import Outcome, summarise
from fedkeel.study.study import Study

SMALL = RunConfig(clients=10, rounds=3, cohort=3, local_steps=2, model="logistic", engine="sequential")
FLAGS = ["--clients", "10", "--rounds", "3", "--cohort", "3", "--local-steps", "2", "--model", "logistic"]
FLAGS += ["--engine", "sequential"]


def compare(config, methods, *, out, seeds, target=None, **options):
    """The rows of a study whose task is a config."""
    task = {key: z for key, z in config.given.items() if z is not None}
    tables = methods if isinstance(methods, dict) else {name: {} for name in methods}
    study = Study.read(task | {"methods": tables, "seeds": seeds, "target": target})
    return run_study(study, out, **options)["rows"]


def history(*accuracies):
    rows = enumerate(accuracies)
    return [{"round": t, "test_accuracy": a, "up": 10.0, "down": 20, "seconds": 0.5, "dropped": 0} for t, a in rows]


def test_rows_by_hand():
    found = [Outcome("m", 0, history(0.2, 0.9, 0.8)), Outcome("m", 1, history(None, 0.5, 0.9))]
    row = summarise("m", found, [0.85], 3)
    assert row["final_accuracy"] == pytest.approx(0.85)
    assert row["final_accuracy_std"] == pytest.approx(statistics.stdev([0.8, 0.9]))
    assert row["best_accuracy"] == pytest.approx(0.9)
    assert (row["rounds_to_target"], row["floats_to_target"]) == (2.5, 75.0)  # rounds 2 and 3, 30 floats each
    assert (row["seconds"], row["floats"], row["errors"]) == (1.5, 90.0, {})
    assert screen_row(row, [0.85]) == {
        "method": "m",
        "final accuracy": "0.850 ± 0.071",
        "best accuracy": "0.900 ± 0.000",
        "rounds to 0.85": "2.5 ± 0.7",
        "floats to 0.85": "75",
        "seconds": "1.5",
    }


def test_a_target_that_is_missed():
    found = [Outcome("m", 0, history(0.2, 0.9, 0.8)), Outcome("m", 1, history(0.1, 0.5, 0.6))]
    some, nobody = summarise("m", found, [0.85], 3), summarise("m", found[1:], [0.85], 3)
    assert (some["rounds_to_target"], some["reached_target"]) == (None, 1)
    assert (screen_row(some, [0.85])["rounds to 0.85"], screen_row(some, [0.85])["floats to 0.85"]) == (">3 (1/2)", ">90")
    assert screen_row(nobody, [0.85])["rounds to 0.85"] == ">3"
    assert screen_row(nobody, [0.85])["final accuracy"] == "0.600"  # one seed has no deviation
    assert list(screen_row(nobody)) == ["method", "final accuracy", "best accuracy", "seconds"]


def test_methods_share_split_sampling_batches_and_initial_weights(tmp_path):
    methods = {"fedavg": {"lr": 0.05}, "fedprox": {"lr": 0.05, "mu": 0.0}}
    a, b = compare(SMALL, methods, seeds=2, target=0.2, out=tmp_path, progress=False)
    for key in ("final_accuracy", "best_accuracy", "rounds_to_target", "floats"):
        assert a[key] == b[key]
    first, second = (directory.history(tmp_path / f"fedavg-seed{seed}") for seed in (0, 1))
    assert [row["train_loss"] for row in first] != [row["train_loss"] for row in second]
    assert config.read(tmp_path / "fedprox-seed1" / "config.toml").split_seed == 0


def test_files(tmp_path):
    rows = compare(SMALL, ["fedavg", "scaffold"], seeds=2, target=0.99, out=tmp_path, progress=False, command="<do it>")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["method"] for row in results["rows"]] == ["fedavg", "scaffold"]
    assert results["methods"]["scaffold"] == {"lr": 0.1, "server_lr": 1.0, "option": "II"}
    assert (results["seeds"], results["task"]["concentration"], results["target"]) == ([0, 1], 0.1, 0.99)
    curve = results["curves"]["scaffold"]
    found = directory.history(tmp_path / "scaffold-seed1")
    assert curve["accuracy"]["1"] == [row["test_accuracy"] for row in found]
    assert curve["floats"][-1] == sum(row["up"] + row["down"] for row in found)
    table = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert float(table[1]["final_accuracy"]) == rows[1]["final_accuracy"]
    assert (table[1]["rounds_to_target"], table[1]["failed"]) == ("", "0")


def test_the_page_stands_alone(tmp_path):
    compare(
        SMALL, ["fedavg", "scaffold"], seeds=2, target=0.5, out=tmp_path, progress=False, command="say '</script>' & {{x}}"
    )
    text = (tmp_path / "report.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", text[:5000] + text[-30000:])
    assert "say &#39;&lt;/script&gt;&#39; &amp; {{x}}" in text
    assert "prefers-color-scheme: dark" in text
    drawn = json.loads(re.search(r'id="found">(.*?)</script>', text)[1])
    for name in ("/accuracy-rounds", "/accuracy-floats"):
        assert [line["name"] for line in drawn[name]["series"]] == ["fedavg", "scaffold"]
        assert len(drawn[name]["series"][0]["x"]) == len(drawn[name]["series"][0]["y"]) == 3
    lines = re.findall(r'<polyline class="line"[^>]*stroke="([^"]*)" stroke-dasharray="([^"]*)"', text)
    assert len({colour for colour, _ in lines[:2]}) == len({dash for _, dash in lines[:2]}) == 2


def test_one_seed_has_a_page_without_bands(tmp_path):
    compare(SMALL, ["fedavg"], seeds=1, out=tmp_path, progress=False)
    text = (tmp_path / "report.html").read_text()
    assert 'class="line"' in text
    assert "fill-opacity" not in text.partition("data-id='/partition'")[0]


def test_complete_runs_are_not_run_again(fedkeel, monkeypatch):
    words = ["compare", *FLAGS, "--algorithms", "fedavg,scaffold", "--seeds", "2", "--target", "0.2"]
    code, out, err = fedkeel(*words)
    assert code == 0
    assert "fedavg seed 1: accuracy" in err
    assert re.search(r"^ scaffold +0\.\d{3} ± 0\.\d{3} ", out, re.MULTILINE)
    assert out.splitlines()[-1] == "files: runs/compare/report.html, table.csv, results.json"

    def never(*_, **__):
        raise AssertionError("a run was started")

    monkeypatch.setattr("fedkeel.runs.from_config.train", never)
    code, again, err = fedkeel(*words)
    assert (code, again) == (0, out)
    assert "4 of 4 runs are complete already" in err


def test_other_settings_need_another_directory(fedkeel):
    words = ["compare", *FLAGS, "--algorithms", "fedavg", "--seeds", "1"]
    fedkeel(*words)
    code, _, err = fedkeel(*words, "--set", "fedavg.lr=0.2")
    assert code == 2
    hint = "choose another --out, or --fresh to replace all runs"
    assert err == f"error: runs/compare/fedavg-seed0 holds a run with lr = 0.1, this one has 0.2; {hint}\n"
    assert fedkeel(*words, "--set", "fedavg.lr=0.2", "--fresh")[0] == 0


def test_a_failing_method_stops_no_other(fedkeel, tmp_path):
    words = ["compare", *FLAGS, "--algorithms", "fedavg,scaffold", "--seeds", "2", "--set", "fedavg.lr=1e38"]
    code, out, err = fedkeel(*words, "--target", "0.1")
    assert code == 1
    assert "Traceback" not in err
    assert re.search(r"failed: fedavg seed 1: fedavg, round \d, client \d+, client: .*NotFinite", out)
    assert re.search(r"^ fedavg +- +- +- +- +- *\n \(2 failed\)", out, re.MULTILINE)
    assert re.search(r"^ scaffold +0\.\d{3} ", out, re.MULTILINE)
    assert "Runs that failed" in (tmp_path / "runs/compare/report.html").read_text()


def test_an_interrupted_comparison_goes_on(fedkeel, monkeypatch):
    words = ["compare", *FLAGS, "--algorithms", "fedavg,scaffold", "--seeds", "1", "--jobs", "1"]
    whole = from_config.train

    def interrupted(one, *rest, **options):
        if one.algorithm == "scaffold":
            raise KeyboardInterrupt
        return whole(one, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedkeel.runs.from_config.train", interrupted)
        code, _, err = fedkeel(*words)
    assert code == 130
    assert err.splitlines()[-1] == f"interrupted; go on with: fedkeel {' '.join(words)}"
    code, _, err = fedkeel(*words)
    assert code == 0
    assert "1 of 2 runs are complete already" in err


def test_a_study_file_with_methods(fedkeel, tmp_path):
    (tmp_path / "study.toml").write_text(
        'clients = 10\nrounds = 9\ncohort = 3\nlocal_steps = 2\nmodel = "logistic"\nengine = "sequential"\n'
        "seeds = 1\ntarget = 0.3\n[methods.fedlada]\nlr = 0.01\nalpha = 0.2\n[methods.fedavg]\n"
    )
    code, out, _ = fedkeel("compare", "study.toml", "--rounds", "2", "--set", "fedlada.lr=0.02")
    assert code == 0
    assert "to 0.3" in out
    results = json.loads((tmp_path / "runs/compare/results.json").read_text())
    assert list(results["methods"]) == ["fedlada", "fedavg"]
    assert (results["methods"]["fedlada"]["lr"], results["methods"]["fedlada"]["alpha"]) == (0.02, 0.2)
    assert (results["task"]["rounds"], results["seeds"]) == (2, [0])
    code, _, err = fedkeel("run", "study.toml")
    assert (code, err[:28]) == (2, "error: seeds: unknown settin")


def test_wrong_arguments(tmp_path):
    for methods, seeds, target, words in [
        ([], 1, None, "there are none"),
        (["fedavg"], 1.5, None, "seeds = 1.5"),
        (["fedavg"], 1, "high", "target = 'high'"),
        ({"fedavg": {"lr": 0}}, 1, None, "lr = 0 is not allowed"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            compare(SMALL, methods, seeds=seeds, target=target, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
