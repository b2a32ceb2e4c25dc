"""Runs side by side: the same results, failures that stop no other, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedkeel.runs import from_config
from fedkeel.study.compare import run_study
from fedkeel.study.running.reading import read_study
from fedkeel.study.running.scheduler import run_branches
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen


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
    whole = from_config.train

    def dies(one, *rest, **options):
        if one.algorithm == "scaffold":
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(one, *rest, **options)

    monkeypatch.setattr("fedkeel.runs.from_config.train", dies)
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
    words += ["--seeds", "1", "--rounds", "800", "--jobs", "2", "--engine", "sequential"]
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
