"""What a study file or command may say: every part is obeyed, or refused in one line before anything is run."""

import re
from pathlib import Path

import pytest

from fedkeel.study.study import Study, path_of, safe

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}


def read(**changes):
    return Study.read(TASK | {"methods": {"fedavg": {}}} | changes)


# Directories ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"methods": {"fedavg (a)": {"algorithm": "fedavg"}, "fedavg [a]": {"algorithm": "fedavg"}}},
            "'fedavg (a)' and 'fedavg [a]' would share the directory fedavg_a",
        ),
        ({"sweep": {"lr": [0.1234567, 0.1234568]}}, "sweep: lr has 0.1234567 and 0.1234568, which are too much alike"),
        ({"sweep": {"lr": [0.1, 0.2, 0.1]}}, "sweep: lr has 0.1 twice"),
        ({"sweep": {"lr": {"from": 0.1, "to": 0.1}}}, "sweep: lr has 0.1 twice"),
        ({"sweep": {"cohort": [1, 1.0]}}, "sweep: cohort has 1 and 1.0"),  # one client, or all
        ({"cases": [{"name": "*"}, {"name": "?"}]}, "'* | fedavg' and '? | fedavg' would share the directory _/fedavg"),
        ({"methods": {"fedavg": {"lr": [0.1, 0.2, 0.1]}}}, "methods: fedavg: the grid of lr has 0.1 twice"),
        ({"methods": {"fedavg": {"lr": [0.1234567, 0.1234568]}}}, "the grid of lr has 0.1234567 and 0.1234568"),
    ],
)
def test_no_two_runs_share_a_directory(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read(**changes)


@pytest.mark.parametrize("name", ["*", ".", "..", "/", "", "../..", "a/../b"])
def test_a_name_never_leads_out_of_the_store(name):
    assert safe(name).strip(".")
    assert "/" not in safe(name)
    if name:
        branch = read(cases=[{"name": name}]).branches[0]
        assert path_of(Path("/store"), branch, 0).resolve().parts[:2] == ("/", "store")
        assert len(path_of(Path("/store"), branch, 0).resolve().parts) == 4


def test_directories_of_runs_stay_what_they_were():
    study = read(
        cases=[{"name": "MNIST S=10, omega=0.01"}], sweep={"lr": [0.1, 1e-7]}, methods={"fedavg": {"server_lr": [1, 2.5]}}
    )
    paths = [str(path_of(Path("s"), branch, 3)) for branch in study.branches]
    assert paths == ["s/MNIST_S=10_omega=0.01/fedavg-lr=0.1-seed3", "s/MNIST_S=10_omega=0.01/fedavg-lr=1e-07-seed3"]
    trial = path_of(Path("s"), study.branches[0], 1000, {"server_lr": 2.5})
    assert str(trial) == "s/search/MNIST_S=10_omega=0.01/fedavg-lr=0.1-server_lr=2.5-seed1000"
