"""Studies that were stopped, changed or are not complete: what runs again, and what a report says before the end."""

import json
import shutil
import signal
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace

import pytest

from fedkeel.engine.forked import defer_ctrl_c
from fedkeel.files import sealed, unsealed
from fedkeel.runs import config, from_config
from fedkeel.runs.config import RunConfig, resolve
from fedkeel.runs.saved_config import saved_config
from fedkeel.study.compare import run_study
from fedkeel.study.report.figures import figures
from fedkeel.study.report.write import report, results_of
from fedkeel.study.results.collect import _robustness
from fedkeel.study.results.numbers import NOT_RUN
from fedkeel.study.running.plan import StudyRun
from fedkeel.study.running.progress import StudyBar
from fedkeel.study.running.scheduler import run_branches
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 2, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen
FLAGS = [word for key, z in TASK.items() for word in (f"--{key.replace('_', '-')}", str(z))]


def read(methods, **changes):
    return Study.read(TASK | {"methods": methods, "seeds": 1} | changes)


def test_the_advice_after_a_stop_does_not_begin_again(fedkeel, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkeel.runs.from_config.train", interrupted)
    words = ["compare", *FLAGS, "--algorithms", "fedavg", "--set", "fedavg.lr=0.1", "--jobs", "1", "--out", "a b"]
    code, _, err = fedkeel(*words[:3], "--fresh", *words[3:])
    assert code == 130
    assert err.splitlines()[-1] == f"interrupted; go on with: fedkeel {' '.join(words[:-1])} 'a b'"


def test_ctrl_c_waits_for_the_end_of_a_fork():
    done = []

    def fork():
        with defer_ctrl_c():
            signal.raise_signal(signal.SIGINT)
            done.append("the process is known")

    with pytest.raises(KeyboardInterrupt):
        fork()
    assert done
    with defer_ctrl_c():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("columns", [80, 140])
def test_the_bar_has_room_for_accuracy_and_time_left(tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    (branch,) = read({"fedavg": {}}, sweep={"lr": [0.001], "concentration": [0.1]}).branches
    run = StudyRun(branch, resolve(RunConfig(rounds=500)), tmp_path)
    with StudyBar(32, 16_000, True) as bar:
        bar.progress.console.file = StringIO()
        bar.begin(run)
        bar.row(run, {"round": 3, "test_accuracy": 0.5})
        bar.refresh(now=True)
        shown = bar.progress.make_tasks_table(bar.progress.tasks)
        text = "".join(z.text for z in bar.progress.console.render(shown))
    assert ("accuracy 0.500" in text, "left" in text, "…" in text) == (True, True, False)
    assert ("fedavg | lr = 0.001" in text) == (columns == 140)


def test_rounds_of_a_checkpoint_are_no_work_of_today(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkeel.engine.state.directory.next_round", lambda path: 300)
    run = StudyRun(read({"fedavg": {}}).branches[0], resolve(RunConfig(rounds=500)), tmp_path)
    with StudyBar(1, 500, False) as bar:
        bar.begin(run)
        for t in range(310):
            bar.row(run, {"round": t, "test_accuracy": 0.5})
        bar.refresh(now=True)
        assert (bar.progress.tasks[0].completed, bar.progress.tasks[0].total) == (10, 200)
        bar.end(run, None)
        assert (bar.rounds_done, bar.rounds) == (200, 200)


# A grid that was changed ----------------------------------------------------------------------------------------------


def test_another_choice_of_a_changed_grid_is_run_in_the_place_of_the_old_one(tmp_path, capsys):
    run_study(read({"fedavg": {"lr": [1e-6, 1e-5]}}), tmp_path, jobs=1, progress=False)
    assert saved_config(tmp_path / "fedavg-seed0").hyperparameters["lr"] == 1e-6
    study = read({"fedavg": {"lr": [1e-6, 0.1]}, "fedprox": {}})
    for rows in (run_study(study, tmp_path, jobs=1, progress=False)["rows"], results_of(tmp_path)["rows"]):
        assert (rows[0]["chosen"], rows[0]["seeds"], rows[1]["seeds"]) == ({"lr": 0.1}, 1, 1)
    assert saved_config(tmp_path / "fedavg-seed0").hyperparameters["lr"] == 0.1
    run_study(read({"fedavg": {"lr": [1e-6, 1e-5, 0.1]}}), tmp_path, jobs=1)
    assert "replaces" not in capsys.readouterr().err  # the same choice
    run_study(read({"fedavg": {"lr": [1e-6, 1e-5]}}), tmp_path, jobs=1)
    assert "fedavg seed 0: replaces a run with lr = 0.1" in capsys.readouterr().err
    run_study(study, tmp_path, jobs=1, progress=False)
    before = (tmp_path / "fedavg-seed0/metrics.jsonl").stat().st_mtime_ns
    run_study(study, tmp_path, jobs=1, progress=False)
    assert (tmp_path / "fedavg-seed0/metrics.jsonl").stat().st_mtime_ns == before  # it is complete


def test_a_run_that_will_be_replaced_has_not_failed(tmp_path):
    """A study that was stopped between its new search and the runs after it."""
    run_study(read({"fedavg": {"lr": [1e-6, 1e-5]}}), tmp_path, jobs=1, progress=False)
    old = (tmp_path / "fedavg-seed0").rename(tmp_path / "kept")
    run_study(read({"fedavg": {"lr": [1e-6, 0.1]}}), tmp_path, jobs=1, progress=False)
    shutil.rmtree(tmp_path / "fedavg-seed0")
    old.rename(tmp_path / "fedavg-seed0")
    assert results_of(tmp_path)["rows"][0]["errors"] == {0: NOT_RUN}
    study = Study.read(config.read_settings(tmp_path / "study.toml"))
    assert [one.outcomes[0].error for one in run_branches(study, tmp_path, jobs=1, progress=False)] == [None]
    assert saved_config(tmp_path / "fedavg-seed0").hyperparameters["lr"] == 0.1


def test_data_that_are_absent_do_not_keep_a_report_from_being_written_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path))
    monkeypatch.setattr("fedkeel.data.readers.hub.from_hub", lambda **_: (_ for _ in ()).throw(ValueError("data: no hub")))
    cases = [{"name": "here"}, *({"name": z, "data": "cifar10", "clients": 10 + i} for i, z in enumerate("ab"))]
    for _ in range(2):
        rows = run_study(read({"fedavg": {}}, cases=cases), tmp_path / "s", jobs=1, progress=False)["rows"]
        assert [row["seeds"] for row in rows] == [1, 0, 0]


def test_a_value_that_is_in_no_grid_replaces_nothing(tmp_path):
    run_study(read({"fedavg": {"lr": [1e-6, 1e-5]}}), tmp_path, jobs=1, progress=False)
    for other in ({"lr": 0.1}, {"lr": [1e-6, 0.1], "weight_decay": 0.1}):
        rows = run_branches(read({"fedprox": {}}), tmp_path, jobs=1, progress=False)
        assert rows[0].outcomes[0].error is None
        with pytest.raises(ValueError, match=r"holds a run with .*--fresh"):
            run_study(read({"fedavg": other}), tmp_path, jobs=1, progress=False)


def test_the_same_study_twice_at_once_is_refused(fedkeel, tmp_path):
    words = ["compare", *FLAGS, "--algorithms", "fedavg", "--seeds", "1", "--jobs", "1", "--out", "here"]
    (tmp_path / "here").mkdir()
    holder = "import fcntl, sys; f = open('here/study.lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        code, _, err = fedkeel(*words)
        other.communicate(b"\n")
    assert (code, err.strip()) == (2, "error: out: another process is running a study in here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["study.lock"]
    assert fedkeel(*words)[0] == 0


# What a report says before the end ------------------------------------------------------------------------------------


@pytest.fixture
def searched(tmp_path):
    """The directory of a complete study with a search of which one trial diverged."""
    study = read({"fedavg": {"lr": [1e-6, 0.1, 1e38], "weight_decay": [0.0, 0.01]}}, search={"way": "coordinate"})
    run_study(study, tmp_path, jobs=1, progress=False)
    return tmp_path


def chosen_and_trials(path):
    results = results_of(path)
    return results["rows"][0]["chosen"], [(z["lr"], z["chosen"], z["error"]) for z in results["search"][0]["trials"]]


def test_a_trial_that_failed_is_not_one_still_to_come(searched):
    chosen, trials = chosen_and_trials(searched)
    assert chosen["lr"] == 0.1
    assert "NotFinite" in trials[2][2]
    shutil.rmtree(searched / "fedavg-seed0")
    assert chosen_and_trials(searched) == (chosen, trials)  # the search has ended, its runs are still to come
    shutil.rmtree(searched / "search" / "fedavg-lr=1e-06_weight_decay=0.01-seed1000")
    results = results_of(searched)
    assert [z["error"] == NOT_RUN for z in results["search"][0]["trials"]] == [True, False, False]
    assert (results["rows"][0]["chosen"], results["rows"][0]["errors"]) == ({}, {0: NOT_RUN})
    assert not any(z["chosen"] for z in results["search"][0]["trials"])
    assert "lr" not in results["methods"]["fedavg"]  # nor is it the default
    assert "weight_decay" not in results["task"]
    text = report(searched).read_text()
    assert text.count("<td>not complete</td>") == text.count("<td>failed</td>") == 1
    assert "so the middle of every list was taken" not in text


def test_runs_after_a_search_tell_what_it_chose(searched):
    before = chosen_and_trials(searched)[0]
    shutil.rmtree(searched / "search" / "fedavg-lr=1e+38_weight_decay=0.01-seed1000")  # archives have only complete runs
    assert chosen_and_trials(searched)[0] == before
    shutil.rmtree(searched / "search")
    chosen, trials = chosen_and_trials(searched)
    assert chosen == before
    assert {error for _, _, error in trials} == {NOT_RUN}
    assert results_of(searched)["search"][0]["note"] == ""
    assert results_of(searched)["rows"][0]["seeds"] == 1


def test_a_run_that_failed_is_told_until_it_is_run_again(tmp_path, monkeypatch):
    study = read({"fedavg": {}, "scaffold": {}, "fedprox": {}})
    whole = from_config.train

    def fails(one, *rest, **options):
        if one.algorithm == "scaffold":
            raise ValueError("no luck")
        return whole(one, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedkeel.runs.from_config.train", fails)
        run_study(study, tmp_path, jobs=1, progress=False)
    shutil.rmtree(tmp_path / "fedprox-seed0")
    assert [row["errors"] for row in results_of(tmp_path)["rows"]] == [{}, {0: "no luck"}, {0: NOT_RUN}]
    run_branches(study, tmp_path, jobs=1, progress=False)
    assert [row["errors"] for row in results_of(tmp_path)["rows"]] == [{}] * 3
    assert {path.name for path in (tmp_path / "scaffold-seed0").iterdir()} == {
        *("config.toml", "metrics.jsonl", "summary.json", "lock"),
    }


def test_a_point_still_to_come_does_not_count_as_a_bad_one(tmp_path):
    study = read({"fedavg": {}}, sweep={"lr": [0.1, 0.11, 0.12, 1e38]})
    whole = run_study(study, tmp_path, jobs=1, progress=False)["robustness"]
    shutil.rmtree(tmp_path / "fedavg-lr=0.11-seed0")
    (under_way,) = results_of(tmp_path)["robustness"]
    assert under_way["decades"] == whole[0]["decades"] > 0.07  # 0.1 to 0.12


def test_a_study_whose_runs_are_elsewhere_keeps_its_report(tmp_path):
    out, store = tmp_path / "view", tmp_path / "runs"
    run_study(read({"fedavg": {}}), out, store=store, jobs=1, progress=False)
    before = (out / "report.html").read_bytes()
    shutil.move(out, tmp_path / "elsewhere" / "view")
    with pytest.raises(ValueError, match=r"report: the runs of this study lie in .*elsewhere/runs, which does not exist"):
        report(tmp_path / "elsewhere" / "view")
    assert (tmp_path / "elsewhere" / "view" / "report.html").read_bytes() == before


# The split ------------------------------------------------------------------------------------------------------------


def test_the_plot_of_the_split_is_that_of_the_study(fedkeel, tmp_path):
    words = ["compare", *FLAGS, "--algorithms", "fedavg", "--seeds", "1", "--out", "p"]
    assert fedkeel(*words, "--concentration", "0.1")[0] == 0
    first = (tmp_path / "p/report/partition.svg").read_bytes()
    assert fedkeel(*words, "--concentration", "1000", "--fresh")[0] == 0
    second = (tmp_path / "p/report/partition.svg").read_bytes()
    assert first != second
    assert fedkeel("report", "p")[0] == 0
    assert (tmp_path / "p/report/partition.svg").read_bytes() == second
    shutil.rmtree(tmp_path / "p/fedavg-seed0")
    assert fedkeel(*words, "--concentration", "0.1")[0] == 0  # another study in the same directory
    assert (tmp_path / "p/report/partition.svg").read_bytes() == first
    assert len(json.loads((tmp_path / "p/origin.json").read_text())["partitions"]) == 1


def test_figures_of_another_study_do_not_stay(tmp_path):
    run_study(read({"fedavg": {}}, cases=[{"name": "A"}]), tmp_path, jobs=1, progress=False)
    assert (tmp_path / "report" / "A-partition.svg").exists()
    (tmp_path / "report" / "mine.txt").write_text("not ours")
    run_study(read({"fedavg": {}}), tmp_path, jobs=1, progress=False)
    names = {path.stem.partition("-")[0] for path in (tmp_path / "report").iterdir()}
    assert names == {"accuracy", "train_loss", "partition", "table", "mine"}


def test_a_sweep_over_splits_says_which_one_is_drawn(tmp_path):
    study = read({"fedavg": {}}, sweep={"concentration": [0.5, 10.0], "lr": [0.1, 0.2]}, resplit=True)
    drawn = figures(run_study(study, tmp_path, jobs=1, progress=False))
    title = "Samples of every class that a client has (area), for concentration = 0.5, split_seed = 0"
    assert [one.title for one in drawn if one.name == "partition"] == [title]
    plain = figures(run_study(read({"fedavg": {}}), tmp_path / "b", jobs=1, progress=False))
    assert [z.title for z in plain if z.name == "partition"] == ["Samples of every class that a client has (area)"]


def test_runs_on_other_data_are_not_put_beside_complete_ones(fedkeel, tmp_path):
    """A folder that has a part of a set, where the whole set was before: same name, same settings."""
    words = ["compare", *FLAGS, "--algorithms", "fedavg", "--out", "s"]
    assert fedkeel(*words, "--seeds", "1")[0] == 0
    kept = tmp_path / "s/fedavg-seed0/summary.json"
    assert fedkeel(*words, "--seeds", "2")[0] == 0  # the same data
    kept.write_text(sealed(unsealed(kept.read_text()) | {"data": "those of another day"}))
    (tmp_path / "s/fedavg-seed1/summary.json").unlink()
    code, _, err = fedkeel(*words, "--seeds", "3")
    assert code == 2
    assert "data: digits differs from what the complete run fedavg seed 0 was trained on" in " ".join(err.split())
    assert fedkeel(*words, "--seeds", "1")[0] == 0  # nothing to be run


def test_fresh_leaves_nothing_of_before(tmp_path):
    """Who goes on after Ctrl-C, without --fresh, must not find runs from before it."""
    study = Study.read(TASK | {"rounds": 2, "methods": {"fedavg": {"lr": [0.1, 0.2]}, "scaffold": {}}, "seeds": 2})
    run_study(study, tmp_path, jobs=1, progress=False)
    assert len(list(tmp_path.rglob("summary.json"))) == 6

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_branches(study, tmp_path, fresh=True, jobs=1, progress=False, begin=stop)
    assert not list(tmp_path.rglob("summary.json"))
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("damage", "why"), [("", "has 0 rounds, not 4"), ("{\n", "cannot be read"), (None, "has 3 rounds, not 4")]
)
def test_a_damaged_history_is_the_fault_of_that_run_alone(tmp_path, damage, why):
    study = Study.read(TASK | {"rounds": 4, "methods": {"fedavg": {}}, "seeds": 2})
    run_study(study, tmp_path, jobs=1, progress=False)
    path = tmp_path / "fedavg-seed1" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(True)[:3]) if damage is None else damage)
    row = run_study(study, tmp_path, jobs=1, progress=False)["rows"][0]
    assert list(row["errors"]) == [1]
    assert why in row["errors"][1]
    assert row["seeds"] == 1


def test_an_origin_that_cannot_be_read_is_named(tmp_path):
    run_study(read({"fedavg": {}}), tmp_path, jobs=1, progress=False)
    (tmp_path / "origin.json").write_text("{")
    with pytest.raises(ValueError, match=r"^out: .*origin.json cannot be read: "):
        report(tmp_path)
    with pytest.raises(ValueError, match=r"^out: .*origin.json cannot be read: "):
        run_study(read({"fedavg": {}}), tmp_path, jobs=1, progress=False)


def test_a_value_at_which_seeds_fail_is_not_robust():
    def decades(errors):
        seeds = {0.1: ({}, 3), 1.0: (errors, 3 - len(errors)), 10.0: ({}, 3)}
        parts = {"case": "", "method": "x", "final_accuracy": 0.9}
        rows = [parts | {"axes": {"lr": z}, "seeds": many, "errors": told} for z, (told, many) in seeds.items()]
        return _robustness(SimpleNamespace(axes={"lr": list(seeds)}), rows)[0]["decades"]

    assert decades({}) == pytest.approx(2.0)
    assert decades({0: "it diverged"}) == 0.0
    assert decades({0: NOT_RUN}) == pytest.approx(2.0)  # so far
