"""Slips of the pen in study files and commands: each is one line that names what is wrong; ranges of whole numbers."""

import re

import pytest

from fedkeel.study.changes import add_axes, set_values
from fedkeel.study.compare import run_study
from fedkeel.study.file import Range, choose_methods
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 2, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}


def read(**changes):
    return Study.read(TASK | {"methods": {"fedavg": {}}} | changes)


# Ranges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "axis", "ends", "values"),
    [
        ("fedavg", "local_steps", (1, 100), [1, 10, 100]),
        ("fedavg", "cohort", (1, 10), [1, 10]),
        ("fedavg", "cohort", (0.1, 1.0), [0.1, 1.0]),
        ("gradma", "memory", (10, 100), [10, 100]),
        ("fadamet", "tracking", (1, 3), [1, 3]),
        ("fedavg", "lr", (1, 10), [1.0, 10.0]),
        ("padamfed", "steps", (1, 10), [1, 10]),  # what the axis is called elsewhere
    ],
)
def test_a_range_of_counts_has_whole_numbers(method, axis, ends, values):
    table = {"over": {"steps": "local_steps"}} if axis == "steps" else {}
    study = read(methods={method: table}, sweep={axis: {"from": ends[0], "to": ends[1], "per_decade": 1}})
    assert [(z, type(z)) for z in study.axes[axis]] == [(z, type(z)) for z in values]


def test_whole_numbers_of_a_range_are_not_there_twice():
    assert read(sweep={"local_steps": {"from": 1, "to": 3, "per_decade": 9}}).axes["local_steps"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"from": 0.1, "to": float("inf")}, "sweep.lr.to = inf is not allowed: input should be a finite number"),
        ({"from": 0, "to": 1.0}, "sweep.lr.from = 0 is not allowed: input should be greater than 0"),
        ({"from": 0.1, "to": 1.0, "per_decade": 2.5}, "sweep.lr.per_decade = 2.5 is not allowed"),
        ({"from": 0.1}, "sweep.lr.to is missing"),
        ({"from": 0.1, "to": 1.0, "steps": 3}, "sweep.lr.steps: unknown key; known: from, per_decade, to"),
        ([None], "sweep.lr.0 = None is not allowed: input should be a number, a text, true or false"),
    ],
)
def test_what_is_wrong_with_an_axis(values, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read(sweep={"lr": values})


# Files and commands ---------------------------------------------------------------------------------------------------

METHODS = "rounds = 2\nseeds = 1\n[methods.fedavg]\n[methods.fedprox]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[cases]]\nname = "a"\nmethods.fedavgg.lr = 0.1\n', "cases: a: fedavgg is not among the methods: fedavg, fedprox"),
        ('[[paper]]\nmetric = "best_accuracy"\nvalues.fedavgg = [1]\n', "paper: fedavgg is not among the methods"),
    ],
)
def test_a_name_that_is_no_method_is_refused_in_a_command_too(fedkeel, tmp_path, text, words):
    (tmp_path / "x.toml").write_text(METHODS + text)
    code, out, err = fedkeel("compare", str(tmp_path / "x.toml"))
    assert (code, out) == (2, "")
    assert words in err


def test_methods_that_are_not_chosen_leave_cases_and_papers():
    cases = [{"name": "a", "methods": {"fedavg": {"lr": 0.1}, "fedprox": {"lr": 0.2}}}]
    paper = [{"metric": "best_accuracy", "values": {"fedavg": [1], "fedprox": [2]}}]
    file = choose_methods({"methods": {"fedavg": {}, "fedprox": {}}, "cases": cases, "paper": paper}, "fedprox,moon")
    assert list(file["methods"]) == ["fedprox", "moon"]
    assert file["cases"][0]["methods"] == {"fedprox": {"lr": 0.2}}
    assert file["paper"][0]["values"] == {"fedprox": [2]}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["sweep", "--over", "lr=0.1,0.2", "--over", "lr=0.3"],
            "over = 'lr=0.3' is not allowed beside another axis lr; give it all its values at once",
        ),
        (["reproduce", "gradma/tab1", "--cases", ","], "cases = ',' is not allowed; it must fit one of: MNIST S=10"),
    ],
)
def test_what_would_be_left_out_or_mean_all(fedkeel, words, told):
    code, _, err = fedkeel(*words, "--algorithms", "fedavg")
    assert (code, err[: len(told) + 7]) == (2, f"error: {told}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"hyperparameters": {"lr": 0.3}},
            "hyperparameters = {'lr': 0.3} is not allowed; methods have tables, [methods.NAME]",
        ),
        ({"algorithm": "fedavg"}, "algorithm = 'fedavg' is not allowed; methods have tables, [methods.NAME]"),
        ({"algorithms": ["fedavg"]}, "algorithms: methods have tables in a study file, [methods.fedavg] and so on"),
        ({"lr": 0.1}, "lr: a hyper-parameter belongs to a method's table, for example [methods.fedavg]"),
        ({"target": [0.5, 0.5]}, "target = [0.5, 0.5] is not allowed; targets must differ"),
        (
            {"target": 0.5, "evaluate_every": 0},
            "evaluate_every = 0 is not allowed with a target: fedavg is evaluated only at its end, so the round that "
            "reaches it would not be known",
        ),
        (
            {"cases": [{"name": "MNIST"}], "paper": [{"metric": "best_accuracy", "at": ["mnist"], "values": {}}]},
            "paper: at = ['mnist'] is not allowed; it must be names of cases or values of an axis: MNIST",
        ),
        (
            {"paper": [{"metric": "best_accuracy", "values": {"fedavg": ["abc"]}}]},
            "paper: fedavg has 'abc'; it must be a number, 'mean±deviation', '-' or '>number'",
        ),
        ({"clients": 0}, "clients = 0 is not allowed; it must be a whole number >= 1"),
        ({"clients": -3, "cohort": 0.5}, "clients = -3 is not allowed; it must be a whole number >= 1"),
        (
            {"methods": {"fedavg": {"lr": {"from": 0.1, "to": 1.0}}}},
            "hyperparameters.lr = {'from': 0.1, 'to': 1.0} is not allowed; it must be a number, a word, true or false",
        ),
    ],
)
def test_the_field_that_is_wrong_is_named(changes, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        read(**changes)


def test_settings_that_are_lists_can_be_of_one_method(tmp_path):
    """metrics = ["tracking"] is one value, not a grid."""
    study = read(methods={"fedavg": {}, "scaffold": {"metrics": ["tracking"]}}, seeds=1)
    assert [branch.grid for branch in study.branches] == [{}, {}]
    rows = run_study(study, tmp_path, jobs=1, progress=False)["rows"]
    assert ["final_tracking_error" in row for row in rows] == [False, True]
    given = set_values({"methods": {"scaffold": {}}, "cases": []}, ["scaffold.metrics=tracking"])
    assert given["methods"] == {"scaffold": {"metrics": ["tracking"]}}


def test_models_of_ones_own_can_be_an_axis():
    assert add_axes({}, ["model=mine:half,mlp"])["sweep"] == {"model": ["mine:half", "mlp"]}
    with pytest.raises(ValueError, match="a range is FROM:TO"):
        add_axes({}, ["lr=mine:half"])


def test_a_range_of_absurd_length_is_refused_at_once():
    for ends in ({"from": 1e-300, "to": 1e300}, {"from": 1e-3, "to": 1.0, "per_decade": 100_000}):
        with pytest.raises(ValueError, match=r"sweep: .* values; at most 1000 are allowed"):
            read(sweep={"lr": ends})
    assert Range(**{"from": 1e-300, "to": 1e300, "per_decade": 1}).values()[:2] == [1e-300, 1e-299]


# Commands -------------------------------------------------------------------------------------------------------------


def test_data_that_are_nowhere_are_one_error_and_asked_for_once(fedkeel, monkeypatch):
    asked = []

    def absent(**source):
        asked.append(source)
        raise ValueError("data: the hub has not given it")

    monkeypatch.setattr("fedkeel.data.readers.hub.from_hub", absent)
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)
    words = ["reproduce", "gradma/tab1", "--cases", "cifar-100", "--algorithms", "fedavg", "--set", "fedavg.lr=0.1"]
    code, _, err = fedkeel(*words, "--set", "fedavg.server_lr=1", "--jobs", "1")
    assert (code, err.count("\n"), "cifar100" in err) == (2, 1, True)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "--sets", "x"], "did you mean --set"),
        (["compare", "--over", "lr=1"], "`fedkeel sweep` has it"),
        (["reproduce", "lada/tab5", "--show", "--algorithms", "foo"], "unknown"),
    ],
)
def test_wrong_options_lead_to_the_right_ones(fedkeel, words, told):
    code, out, err = fedkeel(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


def test_the_fault_of_a_setting_is_told_before_that_of_the_directory(fedkeel):
    words = ["compare", "--algorithms", "fedavg", "--seeds", "1", "--jobs", "1"]
    words += [word for key, z in TASK.items() for word in (f"--{key.replace('_', '-')}", str(z))]
    assert fedkeel(*words)[0] == 0
    for wrong in (["--data", "digitz"], ["--split", "idd"]):
        code, _, err = fedkeel(*words, *wrong)
        assert (code, "unknown name" in err, "holds a run" in err) == (2, True, False)
