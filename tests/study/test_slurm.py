"""`--slurm`, by submitit's local executor: the same results, and a job that is queued again is not fresh."""

import pytest

from fedkeel.study.compare import run_study
from fedkeel.study.running.slurm_runs import Slurm, TrainOnNode
from fedkeel.study.study import Study

submitit = pytest.importorskip("submitit")
TASK = {"clients": 6, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}


def test_what_slurm_may_say():
    assert Slurm.read("partition=short,hours=4,at-most=20") == Slurm("short", 4, 20)
    for text, message in [
        ("partitoin=short", "did you mean partition"),
        ("hours=0", "hours = 0 is not allowed"),
        ("at-most=some", "at-most = 'some' is not allowed"),
        ("cluster=mine", "cluster = 'mine'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Slurm.read(text)


@pytest.mark.slow
def test_jobs_give_the_same_results(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}, "scaffold": {}}, "seeds": 2})
    here = run_study(study, tmp_path / "here", jobs=1, progress=False)
    there = run_study(study, tmp_path / "there", progress=False, slurm="cluster=local,at-most=2")
    assert [row["final_accuracy"] for row in there["rows"]] == [row["final_accuracy"] for row in here["rows"]]
    assert not any(row["errors"] for row in there["rows"])


@pytest.mark.slow
def test_a_job_that_fails_is_reported_and_harms_no_other(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}, "fedprox": {"lr": 1e38}}, "seeds": 1})
    rows = run_study(study, tmp_path, progress=False, slurm="cluster=local,at-most=2")["rows"]
    assert rows[0]["errors"] == {}
    assert "finite" in rows[1]["errors"][0].lower()


def test_the_next_job_is_not_fresh(tmp_path):
    again = TrainOnNode().checkpoint({"rounds": 3}, tmp_path, True, True)
    assert again.args == ({"rounds": 3}, tmp_path, False, True)


def test_the_command_line_refuses_two_clusters(fedkeel):
    code, _, err = fedkeel("compare", "--algorithms", "fedavg", "--ray", "local", "--slurm", "hours=1")
    assert code == 2
    assert "slurm is not allowed with ray" in err
