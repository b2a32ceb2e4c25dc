"""Studies of Python objects: frames, differences, the best method, resuming, and the same numbers as the command line."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.runs.config import SETTINGS
from fedkeel.study.results.numbers import trial_score
from fedkeel.study.study_result import StudyResult
from tests.processes import forked, kill, until

SHORT = {"rounds": 3, "local_steps": 2, "progress": False, "engine": "sequential"}


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def fed():
    return fk.load("digits").split("iid", clients=6)


@pytest.fixture(scope="module")
def study(fed):
    methods = ["fedavg", fk.algorithm("scaffold", lr=0.1), fk.algorithm("fedavg", lr=0.5)]
    return fk.compare(make, fed, methods, seeds=3, target=0.3, jobs=2, **SHORT)


def test_frame_has_a_row_per_method_seed_and_round(study):
    assert len(study.frame) == 3 * 3 * 3
    assert set(study.frame.method) == {"fedavg", "scaffold", "fedavg lr=0.5"}
    assert {"seed", "round", "test_accuracy", "train_loss"} <= set(study.frame.columns)


def test_runs_are_those_of_train(study, fed):
    run = fk.train(make, fed, fk.algorithm("scaffold", lr=0.1), cohort=6, seed=1, rounds=3, local_steps=2, progress=False)
    mine = study.frame[(study.frame.method == "scaffold") & (study.frame.seed == 1)]
    assert mine.test_accuracy.tolist() == [row["test_accuracy"] for row in run.history]
    assert mine.train_loss.tolist() == [row["train_loss"] for row in run.history]


def test_table_has_means_over_seeds_and_costs(study):
    table = study.table.set_index("method")
    last = study.frame[study.frame["round"] == 2].groupby("method").test_accuracy
    for method in table.index:
        assert table.final_accuracy[method] == pytest.approx(last.mean()[method])
        assert table.final_accuracy_std[method] == pytest.approx(last.std()[method])
    assert table.rounds_to_target["fedavg lr=0.5"] <= 2


def test_differences_are_paired_and_say_what_three_seeds_allow(study):
    found = study.differences
    assert {"difference", "low", "high", "p"} <= set(found.columns)
    assert len(found) == 3
    last = study.frame[study.frame["round"] == 2].pivot(index="seed", columns="method", values="test_accuracy")
    for row in found.itertuples():
        assert row.difference == pytest.approx((last[row.method] - last[row.other]).mean())
        assert row.low <= row.difference <= row.high
        assert row.p >= 0.25
    assert "cannot go below 0.25" in found.attrs["note"]
    assert "cannot go below 0.25" in repr(study)


def test_best_plot_and_report(study, tmp_path):
    assert study.best == fk.algorithm("fedavg", lr=0.5)
    study.plot().savefig(tmp_path / "figure.pdf")
    page = study.report(tmp_path / "page.html").read_text()
    assert "fedavg lr=0.5" in page


def test_a_second_call_reads_and_more_seeds_and_methods_extend(fed, tmp_path):
    fk.compare(make, fed, ["fedavg"], seeds=1, out=tmp_path / "s", **SHORT)
    first = tmp_path / "s" / "fedavg-seed0" / "summary.json"
    written = first.stat().st_mtime_ns
    again = fk.compare(make, fed, ["fedavg", "fedprox"], seeds=2, out=tmp_path / "s", **SHORT)
    assert first.stat().st_mtime_ns == written
    assert len(again.frame) == 2 * 2 * 3
    assert StudyResult.read(tmp_path / "s").frame.equals(again.frame)


@pytest.mark.parametrize("keep", [False, True])
def test_more_rounds_extend_a_study(fed, tmp_path, keep):
    """A run whose checkpoint was kept goes on from it; the others start again. The rows are the same either way."""
    short = SHORT | {"keep": keep}
    before = fk.compare(make, fed, ["fedavg", "scaffold"], seeds=1, out=tmp_path, **short).frame
    after = fk.compare(make, fed, ["fedavg", "scaffold"], seeds=1, out=tmp_path, **short | {"rounds": 5}).frame
    whole = fk.compare(make, fed, ["fedavg", "scaffold"], seeds=1, **short | {"rounds": 5}).frame
    assert len(after) == 2 * 5
    assert after.train_loss.tolist() == whole.train_loss.tolist()
    kept = after[after["round"] < 3]
    assert (kept.seconds.tolist() == before.seconds.tolist()) == keep  # seconds differ if a round was trained again
    with pytest.raises(ValueError, match="rounds = 5, this one has 3"):
        fk.compare(make, fed, ["fedavg", "scaffold"], seeds=1, out=tmp_path, **short)


def test_another_model_other_data_or_another_loss_are_refused(fed, tmp_path):
    fk.compare(make, fed, ["fedavg"], seeds=1, out=tmp_path, **SHORT)
    other = fk.load("digits").split("iid", clients=6, seed=3)
    with pytest.raises(ValueError, match="holds a run with data"):
        fk.compare(make, other, ["fedavg"], seeds=1, out=tmp_path, **SHORT)
    with pytest.raises(ValueError, match="holds a run with model"):
        fk.compare(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)),
            fed,
            ["fedavg"],
            seeds=1,
            out=tmp_path,
            **SHORT,
        )
    with pytest.raises(ValueError, match="holds a run with model"):
        fk.compare(
            make, fed, ["fedavg"], seeds=1, out=tmp_path, loss=lambda o, y: nn.functional.cross_entropy(o, y) * 2, **SHORT
        )


def test_names_give_the_numbers_of_the_command_line(fedkeel, tmp_path):
    words = "compare --algorithms fedavg,scaffold --seeds 1 --clients 6 --rounds 3 --local-steps 2 --engine sequential"
    code, _, _ = fedkeel(*words.split(), "--model", "logistic", "--out", str(tmp_path / "cli"))
    assert code == 0
    ours = fk.compare("logistic", "digits", ["fedavg", "scaffold"], seeds=1, clients=6, out=tmp_path / "python", **SHORT)
    theirs = json.loads((tmp_path / "cli" / "results.json").read_text())
    assert [row["final_accuracy"] for row in theirs["rows"]] == ours.table.final_accuracy.tolist()


def test_a_named_model_and_a_loss_of_your_own(fed):
    double = fk.compare(
        "logistic", fed, ["fedavg"], seeds=1, loss=lambda o, y: 2 * nn.functional.cross_entropy(o, y), **SHORT
    )
    plain = fk.compare("logistic", fed, {"faster": {"algorithm": "fedavg", "lr": 0.2}}, seeds=1, **SHORT)
    # Twice the loss is twice the step. The losses that are reported are those of the function, too.
    assert double.frame.test_accuracy.tolist() == plain.frame.test_accuracy.tolist()
    assert double.frame.test_loss.tolist() == pytest.approx((2 * plain.frame.test_loss).tolist(), rel=1e-4)


def test_sweep_compares_values_and_finds_the_best(fed):
    found = fk.sweep(make, fed, ["fedavg"], over={"lr": [0.001, 0.5]}, seeds=2, **SHORT)
    assert sorted(set(found.frame.lr)) == [0.001, 0.5]
    assert found.best == fk.algorithm("fedavg", lr=0.5)
    assert len(found.differences) == 1


def test_a_grid_is_searched(fed):
    found = fk.compare(make, fed, {"fedavg": {"lr": [0.001, 0.5]}}, seeds=1, **SHORT)
    assert found.best.lr == 0.5
    assert found.table.chosen_lr.tolist() == [0.5]


@pytest.mark.skipif("validation" not in SETTINGS, reason="runs cannot hold out validation data")
def test_validation_data_decide_a_search(fed):
    """The search must not look at the test data: here they are labels at random, and say nothing."""
    x, y = fed.test
    scrambled = dataclasses.replace(fed, test=(x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]))
    settings = SHORT | {"validation": 0.3}
    found = fk.compare(make, scrambled, {"fedavg": {"lr": [1e-6, 0.5]}}, seeds=1, **settings)
    assert found.best.lr == 0.5
    assert found.results["compared_by"] == "final_val_accuracy"


def test_validation_comes_first_and_losses_stand_in_for_accuracies():
    assert trial_score("best_accuracy", {"best_accuracy": 0.9, "best_val_accuracy": 0.8}) == "best_val_accuracy"
    assert trial_score("best_accuracy", {"best_accuracy": 0.9}) == "best_accuracy"
    assert trial_score("best_accuracy", {"least_test_loss": 0.9, "least_val_loss": 0.8}) == "least_val_loss"
    assert trial_score("final_accuracy", {"final_accuracy": 0.9, "best_val_accuracy": 0.8}) == "final_accuracy"


def test_reproduce_runs_a_recipe_of_a_paper():
    here = {"data": "digits", "model": "logistic", "clients": 20, "rounds": 1, "local_epochs": 1}
    found = fk.reproduce("gradma/fig8", scale="small", seeds=1, progress=False, **here)
    assert "Changed by options" in found.results["about"]
    assert found.frame.test_accuracy.notna().all()
    with pytest.raises(ValueError, match="unknown name 'gradma/tab99'"):
        fk.reproduce("gradma/tab99")


@pytest.mark.slow
def test_a_killed_study_goes_on(fed, tmp_path):
    settings = SHORT | {"rounds": 200, "jobs": 2, "seeds": 2}
    whole = fk.compare(make, fed, ["fedavg", "scaffold"], **settings).frame
    with forked(lambda: fk.compare(make, fed, ["fedavg", "scaffold"], out=tmp_path, **settings)) as child:
        assert until(lambda: list(tmp_path.glob("*/checkpoint.safetensors")))
        kill(child)
    after = fk.compare(make, fed, ["fedavg", "scaffold"], out=tmp_path, **settings).frame
    same = [name for name in whole if name != "seconds"]
    assert after[same].equals(whole[same])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": []}, "there are none"),
        ({"methods": ["fedavg", "fedavg"]}, "is there twice"),
        ({"methods": ["fedavgg"]}, "did you mean fedavg"),
        ({"methods": [3]}, "expected names"),
        ({"fed": fk.load("digits")}, "not split among clients"),
        ({"fed": 3}, "expected a Federation"),
        ({"model": 3}, "expected a torch.nn.Module"),
        ({"seeds": 0}, "seeds = 0"),
        ({"jobs": 0}, "jobs = 0"),
        ({"target": 2}, "target = 2"),
        ({"ronds": 5}, "unknown setting"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(fed, change, message):
    given = {"model": make, "fed": fed, "methods": ["fedavg"]} | SHORT | change
    with pytest.raises(ValueError, match=message):
        fk.compare(given.pop("model"), given.pop("fed"), given.pop("methods"), **given)


def test_a_study_in_which_every_run_fails_raises(fed):
    with pytest.raises(RuntimeError, match=r"all 1 runs failed.*does not take samples"):
        fk.compare(nn.Linear(3, 10), fed, ["fedavg"], seeds=1, **SHORT)


def test_modules_stay_as_they_are(fed):
    model = make()
    before = torch.cat([p.flatten() for p in model.parameters()]).clone()
    fk.compare(model, fed, ["fedavg"], seeds=1, jobs=1, **SHORT)
    assert torch.equal(before, torch.cat([p.flatten() for p in model.parameters()]))
