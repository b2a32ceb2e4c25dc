"""What a study file and its options expand to: cases, methods, axes and seeds."""

import re
import tomllib

import pytest

from fedkeel.study.changes import add_axes, choose_cases, set_values
from fedkeel.study.file import Range, choose_methods, override
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen


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
