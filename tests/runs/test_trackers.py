"""Trackers of runs that start together, fail, are stopped or resumed. MLflow and wandb are stand-ins here."""

import contextlib
import os
import sys
import time
from types import SimpleNamespace

import pytest

from fedkeel.runs import trackers
from fedkeel.runs.config import RunConfig, resolve
from fedkeel.study.running.plan import StudyPlan, StudyRun
from fedkeel.study.running.pools import ForkPool
from fedkeel.study.study import Study

TASK = {"clients": 10, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}


def stand_in(monkeypatch, name, **parts):
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(**parts))


def test_a_separate_process_makes_the_mlflow_store_once(tmp_path, monkeypatch):
    def made(name):
        (tmp_path / name).write_text(str(os.getpid()))

    stand_in(monkeypatch, "mlflow", set_tracking_uri=lambda place: None, set_experiment=made)
    trackers.check({"mlflow": "sqlite:///x.db"})
    assert int((tmp_path / "fedkeel").read_text()) != os.getpid()  # otherwise the runs would inherit its open files


def test_a_store_that_mlflow_refuses_is_an_error_before_any_run(fedkeel, tmp_path, monkeypatch):
    def refused(place):
        raise RuntimeError(f"unsupported\nURI {place}")

    stand_in(monkeypatch, "mlflow", set_tracking_uri=refused)
    words = ["--algorithms", "fedavg", "--rounds", "2", "--mlflow", "nosuch://x", "--out", str(tmp_path / "x")]
    assert fedkeel("compare", *words) == (2, "", "error: mlflow: unsupported URI nosuch://x\n")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("error", "expected"), [(None, [None, 0]), (RuntimeError, [RuntimeError, 1]), (KeyboardInterrupt, ["KILLED", 1])]
)
def test_how_a_run_ended(monkeypatch, error, expected):
    ended = []

    @contextlib.contextmanager
    def start_run(run_name):
        try:
            yield
        except BaseException as error:
            if not ended:  # as MLflow does: a run that has ended stays as it is
                ended.append(type(error))
            raise
        ended.append(None)

    names = {"set_tracking_uri", "set_experiment", "log_params", "log_metrics"}
    nothing = dict.fromkeys(names, lambda *_, **__: None)
    stand_in(monkeypatch, "mlflow", start_run=start_run, end_run=ended.append, **nothing)
    run = SimpleNamespace(finish=lambda exit_code=0: ended.append(exit_code), log=lambda *_, **__: None)
    stand_in(monkeypatch, "wandb", init=lambda **_: run)
    for name in ("mlflow", "wandb"):
        with (
            pytest.raises(error) if error else contextlib.nullcontext(),
            trackers.tracked({name: ""}, "x", {"rounds": 3}) as log,
        ):
            log({"round": 0, "train_loss": 1.0})
            if error:
                raise error
    assert ended == expected


def test_a_tracker_learns_that_a_study_was_stopped(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def pretend(place, name, config):
        try:
            yield lambda row: None
        except KeyboardInterrupt:
            (tmp_path / "stopped").touch()
            raise

    monkeypatch.setitem(trackers.TRACKERS, "wandb", pretend)
    rows = []
    pool = ForkPool(1, lambda run, row: rows.append(row), lambda: None)
    (branch,) = Study.read(TASK | {"methods": {"fedavg": {}}}).branches
    config = resolve(RunConfig(**TASK, rounds=100_000))
    pool.start(StudyRun(branch, config, tmp_path / "x", trackers={"wandb": ""}), None)
    begun = time.monotonic()
    while not rows and time.monotonic() - begun < 60:
        assert pool.ended() == []
    pool.close()
    assert (tmp_path / "stopped").exists()


def test_tensorboard_shows_every_round_of_a_continued_run_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rounds in (3, 5):  # a resumed run reports its first rounds again
        with trackers.tracked({"tensorboard": str(tmp_path)}, "x", {}) as log:
            for t in range(rounds):
                log({"round": t, "train_loss": 1.0})
        time.sleep(1.1)  # names of event files contain the time in seconds
    events = EventAccumulator(str(tmp_path / "x"))
    events.Reload()
    assert [z.step for z in events.Scalars("train_loss")] == [0, 1, 2, 3, 4]


def test_a_resumed_run_reports_to_the_trackers_too(fedkeel, monkeypatch):
    @contextlib.contextmanager
    def pretend(place, name, config):
        yield lambda row: None

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", pretend)
    stand_in(monkeypatch, "tensorboard")
    monkeypatch.setattr("fedkeel.engine.state.directory.holds_run", lambda path: True)
    monkeypatch.setattr("fedkeel.runs.saved_config.difference", lambda *_: None)
    monkeypatch.setattr("fedkeel.runs.from_config.train", interrupted)
    code, _, err = fedkeel("run", "--rounds", "3", "--tensorboard", "my tb")
    assert (code, err.splitlines()[-1]) == (130, "interrupted; go on with: fedkeel run --rounds 3 --tensorboard 'my tb'")


def test_runs_of_two_studies_have_different_names(tmp_path):
    names = []
    for out in ("one", "two"):
        study = Study.read(TASK | {"rounds": 1, "methods": {"fedavg": {}}, "seeds": 1, "cases": [{"name": "a"}]})
        plan = StudyPlan(study, tmp_path / out)
        names += [run.label for group in study.groups() for run in next(plan.branch_runs(group))]
    assert names == ["one-a-fedavg-seed0", "two-a-fedavg-seed0"]


def test_tensorboard_refuses_a_file(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "afile").write_text("")
    with pytest.raises(ValueError, match=r"tensorboard = '.*afile' is not allowed; it must be a directory"):
        trackers.check({"tensorboard": str(tmp_path / "afile")})
