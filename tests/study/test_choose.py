"""`choose`: problems with a known answer, equal budgets counted from the run directories, the same answer after a kill."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest
from torch import nn

import fedkeel as fk
from fedkeel.study.choosing.budget import divide, read_budget
from fedkeel.study.python_objects import NAMES_ONLY

SHORT = {"rounds": 8, "local_steps": 2, "clients": 6, "cohort": 3, "engine": "sequential", "progress": False, "jobs": 1}
METHODS = ["fedavg", "scaffold", "fedadam"]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    out = tmp_path_factory.mktemp("choose") / "c"
    return fk.choose("logistic", "digits", methods=METHODS, budget=18, seeds=2, out=out, **SHORT)


def rounds_on_disk(out):
    """Rounds that each candidate trained, counted from the lines of the histories."""
    folders = [path for path in (out / "tuning").iterdir() if path.is_dir()]
    return {one.name: sum(len(z.read_text().splitlines()) for z in one.rglob("metrics.jsonl")) for one in folders}


def test_every_candidate_spends_the_same_number_of_rounds(chosen):
    spent = rounds_on_disk(chosen.out)
    assert set(spent) == set(METHODS)
    assert len(set(spent.values())) == 1
    shown = chosen.results["choice"]["budget"]["tuning rounds of each candidate"]
    assert set(spent.values()) == {shown}
    assert f"tuned with {shown} rounds" in chosen.answer


def test_trials_never_see_the_test_data(chosen):
    rows = [json.loads(z) for path in (chosen.out / "tuning").rglob("metrics.jsonl") for z in path.read_text().splitlines()]
    assert any(row.get("val_accuracy") is not None for row in rows)
    assert all(row.get("test_accuracy") is None for row in rows)


def test_the_answer_names_the_method_with_the_best_validation_score(chosen):
    table = chosen.table.set_index("name" if "name" in chosen.table else "method")
    assert chosen.best.name == table.final_val_accuracy.idxmax()
    assert chosen.answer.startswith(f"Run {chosen.best.name} (lr {chosen.best.lr:g}")
    assert f"fedkeel run --data digits --clients 6 --model logistic --algorithm {chosen.best.name}" in chosen.answer
    assert "fedkeel deploy init app --from" in chosen.answer
    assert "With 2 seeds p cannot go below 0.5" in chosen.answer
    assert chosen.answer.splitlines()[0] in (chosen.out / "report.html").read_text()


def test_a_second_call_reads_the_answer(chosen):
    written = {path: path.stat().st_mtime_ns for path in chosen.out.rglob("metrics.jsonl")}
    again = fk.choose("logistic", "digits", methods=METHODS, budget=18, seeds=2, out=chosen.out, **SHORT)
    assert {path: path.stat().st_mtime_ns for path in chosen.out.rglob("metrics.jsonl")} == written
    assert _without_seconds(again) == _without_seconds(chosen)


def _without_seconds(study):
    return [line.partition(" costs a client")[0] for line in study.answer.splitlines()]


def test_optuna_can_read_the_trials(chosen):
    optuna = pytest.importorskip("optuna")
    backend = optuna.storages.journal.JournalFileBackend(str(chosen.out / "tuning" / "trials.journal"))
    storage = optuna.storages.JournalStorage(backend)
    assert set(optuna.get_all_study_names(storage)) == set(METHODS)
    states = [one.state.name for one in optuna.load_study(study_name="scaffold", storage=storage).trials]
    assert "PRUNED" in states
    assert "COMPLETE" in states


def test_the_commands_work_when_they_are_pasted(chosen, fedkeel):
    """From another directory, as the user would do it."""
    train, deploy = chosen.results["choice"]["commands"]
    code, _, err = fedkeel(*shlex.split(train)[1:], "--out", "runs/pasted")
    assert code == 0, err
    with open("runs/pasted/config.toml", "rb") as file:
        made = tomllib.load(file)
    assert made["algorithm"] == chosen.best.name
    assert made["hyperparameters"]["lr"] == chosen.best.lr
    code, _, err = fedkeel(*shlex.split(deploy)[1:])
    assert code == 0, err
    assert os.path.exists("app/pyproject.toml")


def test_the_page_shows_scores_against_communication_and_step_sizes(chosen):
    text = (chosen.out / "report.html").read_text()
    assert "data-id='/choice-communication'" in text
    assert "data-id='/choice-step-sizes'" in text
    assert "not tuned" not in text


def test_a_seed_of_ones_own(tmp_path):
    found = fk.choose("logistic", "digits", methods=["fedavg", "scaffold"], budget=10, seeds=2, seed=5, **SHORT)
    assert found.results["seeds"] == [5, 6]


@pytest.mark.parametrize(
    ("limits", "gone", "why"),
    [
        ({"stateless": True}, "scaffold", "keep"),
        ({"floats_per_round": 1300}, "scaffold", "sends 2,600 floats"),
        ({"memory_per_client": 100}, "scaffold", "keeps 650 floats"),
        ({"secure_sums": True}, "fednova", "single uploads"),
        ({"gradients_per_step": 1}, "fedsam", "2 gradients"),
    ],
)
def test_constraints_exclude_methods_with_a_reason(limits, gone, why):
    from fedkeel.study.choose import _Task
    from fedkeel.study.choosing.candidates import Constraints

    task = _Task({"model": "logistic", "validation": 0.2, "clients": 6, "cohort": 3}, NAMES_ONLY)
    found, excluded = task.candidates({"fedavg": {}, gone: {}}, Constraints.read(limits))
    assert list(found) == ["fedavg"]
    assert why in excluded[gone]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": "soon"}, "budget = 'soon' is not allowed"),
        ({"budget": 3}, "must be at least"),
        ({"constraints": {"statless": True}}, "did you mean stateless"),
        ({"methods": ["fedavg"]}, "at least two candidates"),
        ({"seeds": 1}, "seeds = 1 is not allowed"),
        ({"validation": 0.0}, "validation = 0 is not allowed"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(change, message, tmp_path):
    given = {"methods": METHODS, "budget": 18, "out": tmp_path / "c"} | SHORT | change
    with pytest.raises(ValueError, match=message):
        fk.choose("logistic", "digits", **given)
    assert not (tmp_path / "c").exists()


def test_the_command(fedkeel):
    words = "choose --model logistic --clients 6 --cohort 3 --rounds 4 --local-steps 1 --engine sequential --jobs 1"
    code, out, _ = fedkeel(*words.split(), "--algorithms", "fedavg,scaffold", "--budget", "10runs", "--seeds", "2")
    assert code == 0
    assert out.startswith("Run ")
    code, _, err = fedkeel("choose", "--budget", "soon")
    assert (code, len(err.splitlines())) == (2, 1)


# Budgets ---


@pytest.mark.parametrize("runs", [40, 100, 1000])
@pytest.mark.parametrize("candidates", [2, 5, 20])
@pytest.mark.parametrize("rounds", [20, 100])
def test_a_budget_is_never_exceeded(runs, candidates, rounds):
    found = divide(runs, rounds, candidates)
    assert found.finalists * found.seeds * rounds + candidates * found.tuning.rounds <= runs * rounds
    assert found.finalists * found.seeds <= runs / 2
    assert found.tuning.explore >= 3
    assert all(length <= rounds for _, length in found.tuning.longer)
    # Every stage keeps at most as many trials as the one before it.
    counts = [found.tuning.explore, *(count for count, _ in found.tuning.longer)]
    assert counts == sorted(counts, reverse=True)


def test_forms_of_a_budget():
    assert read_budget(100) == read_budget("100runs") == (100, None)
    assert read_budget("60min") == read_budget("1h") == (None, 3600)


# A known answer, chance, and kills ---


def quadratics():
    """Lines without noise. A client repeats one input per coordinate, so its held-out part has the same minimum.

    Clients disagree about the first coordinate, in solution and curvature. The second coordinate is flat and needs large
    steps. So FedAvg is either biased or slow.
    """
    pairs = []
    for i in range(4):
        x = np.tile(np.diag([3.0 if i % 2 else 1.0, 0.3]), (100, 1)).astype("float32")
        w = np.array([4.0 * (-1) ** i, 10.0])
        pairs.append((x, (x @ w).astype("float32")[:, None]))
    return fk.Federation.from_arrays(pairs)


@pytest.mark.slow
def test_on_quadratics_the_exact_method_wins():
    found = fk.choose(
        lambda: nn.Linear(2, 1, bias=False),
        quadratics(),
        methods={"fedavg": {"server_lr": 1.0}, "scaffold": {}},
        budget=32,
        rounds=20,
        cohort=4,
        local_steps=10,
        batch_size="all",
        loss=nn.functional.mse_loss,
        engine="sequential",
        progress=False,
    )
    assert found.best.name == "scaffold"
    assert "Worse: fedavg" in found.answer


def equal_clients():
    """Every client has the same data, without noise: all methods reach the same minimum."""
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    y = (x @ np.array([1.0, -2.0, 0.5], dtype="float32"))[:, None]
    return fk.Federation.from_arrays([(x, y)] * 4)


@pytest.mark.slow
def test_on_equal_clients_nothing_beats_fedavg():
    found = fk.choose(
        lambda: nn.Linear(3, 1),
        equal_clients(),
        methods=["fedavg", "scaffold", "fedprox"],
        budget=48,
        rounds=30,
        cohort=4,
        local_steps=5,
        batch_size="all",
        loss=nn.functional.mse_loss,
        engine="sequential",
        progress=False,
        jobs=1,
    )
    rows = {row["method"]: row["standing"] for row in found.results["rows"]}
    assert rows["fedavg"] in ("best", "alike")
    assert "Not distinguishable" in found.answer
    assert "Worse: fedavg" not in found.answer


def noisy_task(seed):
    """Unequal clients and noise, so that methods differ, but not by much."""
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(6):
        x = rng.normal(size=(60, 4)).astype("float32") * (1 + i % 3)
        w = np.array([1.0, -1.0, 2.0 * (-1) ** i, 0.0])
        pairs.append((x, (x @ w + 0.3 * rng.normal(size=60)).astype("float32")[:, None]))
    return fk.Federation.from_arrays(pairs)


@pytest.mark.slow
def test_a_small_budget_chooses_as_a_large_one_does():
    """In at least 8 of 10 repetitions, a small budget chooses as a large one, or what that cannot tell from its choice."""
    same = 0
    for repetition in range(10):
        how = {"rounds": 10, "cohort": 3, "local_steps": 5, "loss": nn.functional.mse_loss, "engine": "sequential"}
        how |= {"methods": ["fedavg", "scaffold", "fedadam"], "progress": False, "jobs": 1, "seed": 100 * repetition}
        small, large = (
            fk.choose(lambda: nn.Linear(4, 1), noisy_task(repetition), budget=budget, **how) for budget in (16, 40)
        )
        best = small.best_name
        standing = {row["method"]: row["standing"] for row in large.results["rows"]}
        same += standing.get(best) in ("best", "alike")
    assert same >= 8


CODE = """
import sys, fedkeel as fk
fk.choose("logistic", "digits", methods=["fedavg", "scaffold"], budget=24, rounds=24, local_steps=3, clients=6, cohort=3,
    engine="sequential", progress=False, jobs=1, seeds=2, out=sys.argv[1])
"""


@pytest.mark.slow
def test_kill_9_and_again_gives_the_same_answer(tmp_path):
    def start(out):
        return subprocess.Popen([sys.executable, "-c", CODE, str(out)], env=os.environ | {"OMP_NUM_THREADS": "1"})

    assert start(tmp_path / "whole").wait(200) == 0
    histories = len(list((tmp_path / "whole").rglob("metrics.jsonl")))
    for share in (0.2, 0.6):  # killed during the tuning, twice
        process = start(tmp_path / "killed")
        while len(list((tmp_path / "killed").rglob("metrics.jsonl"))) < share * histories and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "killed" / "choice.json").exists()
    assert start(tmp_path / "killed").wait(200) == 0
    whole, killed = (json.loads((tmp_path / name / "choice.json").read_text()) for name in ("whole", "killed"))
    assert killed["candidates"] == whole["candidates"]
    assert killed["best"] == whole["best"]
    assert rounds_on_disk(tmp_path / "killed") == rounds_on_disk(tmp_path / "whole")
