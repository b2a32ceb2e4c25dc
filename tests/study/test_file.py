"""What a study file or command may say: every part is obeyed, or refused in one line before anything is run."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w

from fedkeel.engine.metrics import METRICS
from fedkeel.engine.state.checkpoint import check_same
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig
from fedkeel.study.changes import set_values
from fedkeel.study.compare import run_study
from fedkeel.study.file import choose_methods
from fedkeel.study.results.numbers import Outcome, better_is_less, curves, is_column, of_run
from fedkeel.study.study import Study, path_of
from fedkeel.wording import file_name

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen


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
        ({"methods": {"x" * 300: {"algorithm": "fedavg"}}}, "is too long for the name of a directory"),
        ({"methods": {"ж" * 150: {"algorithm": "fedavg"}}}, "is too long for the name of a directory"),
        ({"cases": [{"name": "x" * 300}]}, "is too long for the name of a directory"),
        ({"methods": {"fedavg": {"cost": math.inf}}}, "cost = inf is not allowed; it must be a number >= 0"),
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
    assert file_name(name).strip(".")
    assert "/" not in file_name(name)
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


# Wrong files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cases]\nname = 'A'", "study: cases must be a list of tables, each begun by [[cases]]"),
        ("[[methods]]\nlr = 0.1", "methods: in a study file it must be tables, for example [methods.fedlada]"),
        ("[methods]\nfedavg = 3", "methods: in a study file it must be tables"),
        ("[paper]\nmetric = 'best_accuracy'", "study: paper must be a list of tables, each begun by [[paper]]"),
        ("[[paper]]\nmetric = 'best_accuracy'", "study: paper.0.values is missing"),
        ("[[cases]]\nname = 'A'\nmethods = 'fedavg'", "study: cases.0.methods = 'fedavg' is not allowed"),
        ("[[cases]]\nname = 'A'\nmethods.fedavg = 3", "study: cases.0.methods.fedavg = 3 is not allowed"),
        ("[[cases]]\nname = 'A'\nseeds = 0", "cases: A: seeds = 0 is not allowed; it must be a whole number >= 1"),
        ("[[cases]]\nname = 'A'\nseeds = [1, 1]", "cases: A: seeds = [1, 1] is not allowed"),
        ("[[cases]]\nname = 'A'\nseeds = 'two'", "study: cases.0.seeds = 'two' is not allowed"),
        ("[[cases]]\nname = 3", "study: cases.0.name = 3 is not allowed"),
        ("[[cases]]\nrounds = 3", "study: cases.0.name is missing"),
        ("[methods.fedavg]\nalgorithm = 3", "study: methods.fedavg.algorithm = 3 is not allowed"),
        ("search = 'grid'", "study: search = 'grid' is not allowed"),
        ("sweep = 3", "study: sweep = 3 is not allowed"),
        ("[methods.padamfed]\nover = 'gamma'\n[sweep]\nlr = [0.1]", "study: methods.padamfed.over = 'gamma' is not allowed"),
        ("[methods.padamfed]\nover.lr = 'gama'\n[sweep]\nlr = [0.1]", "over.lr = 'gama' is not allowed; did you mean gamma"),
        ("[methods.fedavg]\nover.x = 'seed'\n[sweep]\nx = [1, 2]", "methods: fedavg: over.x = 'seed' is not allowed"),
        ("[methods.fedavg]\ncost = 'two'", "methods: fedavg: cost = 'two' is not allowed; it must be a number >= 0"),
        ("targets = 0.9", "targets: unknown setting; did you mean target"),
    ],
)
def test_wrong_files_are_refused_in_one_line(fedkeel, tmp_path, text, words):
    more = "" if "methods" in text else "\n[methods.fedavg]\n"
    (tmp_path / "study.toml").write_text(f"clients = 10\n{text}{more}")
    for command in ("compare", "sweep"):
        code, _, err = fedkeel(command, "study.toml")
        if "over: there is no axis" not in err:
            assert (code, err.count("\n")) == (2, 1)
            assert words in err


def test_a_method_with_any_name_can_be_set():
    labels = ("fedavg lr0.1", "fedavg", "fedavg lr=0.1")
    file = choose_methods(TASK | {"methods": {name: {"algorithm": "fedavg"} for name in labels}}, "")
    changes = ["fedavg lr0.1.server_lr=0.5", "fedavg.server_lr=0.6", "fedavg lr=0.1.server_lr=0.7"]
    study = Study.read(set_values(file, changes))
    assert [branch.config.hyperparameters["server_lr"] for branch in study.branches] == [0.5, 0.6, 0.7]
    for wrong, words in {"fedavgserver_lr": "it must be METHOD.NAME=VALUE", "moon.lr=1": "moon is not among"}.items():
        with pytest.raises(ValueError, match=words):
            set_values(file, [wrong])


# Nothing is ignored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 7, "seeds": [0, 1]}, "seed = 7 is not allowed beside seeds = [0, 1]"),
        ({"seeds": [0, 1], "cases": [{"name": "A", "seed": 7}]}, "seed = 7 is not allowed beside seeds = [0, 1]"),
        (
            {"methods": {"fedavg": {"seed": 7}}},
            "methods: fedavg: seed = 7 is not allowed; all methods have the study's seeds",
        ),
        ({"cases": [{"name": "A", "methods": {"fedavg": {"seed": [1]}}}]}, "methods: fedavg: seed = [1] is not allowed"),
        (
            {"cases": [{"name": "A", "algorithm": "moon"}]},
            "cases: A: algorithm = 'moon' is not allowed; methods have tables",
        ),
        ({"sweep": {"seed": [1, 2, 3]}}, "sweep: seed is not allowed; give the runs their seeds by `seeds`"),
        ({"sweep": {"algorithm": ["fedavg", "moon"]}}, "sweep: algorithm is not allowed; methods have tables"),
        ({"target_on": "train_accuracy", "target": 0.5}, "target_on = 'train_accuracy' needs metrics = ['train']"),
        ({"resplit": True, "split_seed": 3}, "split_seed = 3 is not allowed with resplit"),
        ({"resplit": True, "sweep": {"split_seed": [3, 4]}}, "split_seed = 3 is not allowed with resplit"),
    ],
)
def test_what_would_be_ignored_is_refused(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read(**changes)
    assert read(target_on="train_accuracy", target=0.5, metrics=["train"]).branches
    assert [branch.seeds for branch in read(seed=7, seeds=2, cases=[{"name": "A"}, {"name": "B", "seed": 3}]).branches] == [
        (7, 8),
        (3, 4),
    ]


def shown(fedkeel, *words):
    """The study that a command would run: `reproduce` has a way to show it."""
    code, out, err = fedkeel("reproduce", *words, "--show")
    return tomllib.loads(out) if code == 0 else err


def test_seeds_of_the_command_line_win_over_those_of_cases(fedkeel, tmp_path):
    (tmp_path / "study.toml").write_text(
        f"{tomli_w.dumps(TASK)}seeds = [4, 5]\n[methods.fedavg]\n[[cases]]\nname = 'A'\nseeds = 3\n"
    )
    assert fedkeel("compare", "study.toml", "--seeds", "1")[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs/compare/A").iterdir()) == ["fedavg-seed0"]
    assert fedkeel("compare", "study.toml", "--seed", "7", "--out", "x")[0] == 0
    assert sorted(path.name for path in (tmp_path / "x/A").iterdir()) == [f"fedavg-seed{z}" for z in (7, 8, 9)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lada/fig4", "--cohort", "5"], "cohort = 5 is not allowed: the study sweeps over cohort; --over cohort=VALUES"),
        (["lada/tab4", "--local-steps", "5"], "local_steps = 5 is not allowed: the study sweeps over local_epochs"),
        (
            ["lada/tab5", "--set", "fedlada.alpha=0.5"],
            "set = 'fedlada.alpha=0.5' is not allowed: the study sweeps over alpha",
        ),
        (
            ["ppf/fig2", "--set", "padamfed.gamma=0.5,1"],
            "set = 'padamfed.gamma=0.5,1' is not allowed: the study sweeps over lr",
        ),
        (["lada/tab7", "--over", "cohort=2,3", "--cohort", "5"], "cohort = 5 is not allowed: the study sweeps over cohort"),
    ],
)
def test_a_value_in_the_place_of_an_axis_is_refused(fedkeel, words, told):
    assert told in shown(fedkeel, *words)


def test_a_value_beside_the_axes_is_taken(fedkeel):
    file = shown(fedkeel, "ppf/fig2", "--set", "padamfed.lr=0.5", "--over", "lr=0.1,1", "--cohort", "5")
    assert (file["cohort"], file["sweep"], file["methods"]["padamfed"]["lr"]) == (5, {"lr": [0.1, 1]}, 0.5)


def test_an_axis_of_steps_replaces_one_of_epochs(fedkeel):
    """Both axes together would be combinations of which one value does nothing."""
    assert shown(fedkeel, "lada/tab4", "--over", "local-steps=3,5")["sweep"] == {"local_steps": [3, 5]}


def test_less_is_better_of_losses_and_costs_and_more_of_accuracies():
    less = ["final_objective", "final_tracking_bias", "final_qp_residual", "floats", "up", "cost", "final_train_loss"]
    less += [
        "rounds_to_target",
        "floats_to_second",
        "cost_to_third",
        "up_to_target_4",
        "seconds",
        "memory_mb",
        "final_drift",
    ]
    assert all(map(better_is_less, less))
    assert not any(map(better_is_less, ("final_accuracy", "final_train_accuracy", "final_cosine", "at_target_accuracy")))


@pytest.mark.parametrize(("method", "key"), [("fedavg", "cohort"), ("fadamgt", "tracking")])
def test_one_client_is_not_all_of_them(tmp_path, method, key):
    """1 is a count and 1.0 a share: runs of one are never taken for, or mixed with, runs of the other."""
    task = TASK | {"rounds": 2, "cohort": 3, "engine": "sequential"}
    study = Study.read(task | {"methods": {method: {}}, "sweep": {key: [1, 1.0]}, "seeds": 1})
    assert [branch.slug for branch in study.branches] == [f"{method}-{key}=1", f"{method}-{key}=1.0"]
    for value, other in ((1, 1.0), (1.0, 1)):
        out = tmp_path / repr(value)
        run_study(Study.read(task | {"methods": {method: {key: value}}, "seeds": 1}), out, jobs=1, progress=False)
        again = Study.read(task | {"methods": {method: {key: other}}, "seeds": 1})
        with pytest.raises(ValueError, match=f"holds a run with {key} = {value}, this one has {other}"):
            run_study(again, out, jobs=1, progress=False)
    kept = {"settings": {"cohort": 1, "lr": 1}, "algorithm": {"lr": 1.0, "tracking": 1.0}}
    check_same(kept, {"settings": {"cohort": 1, "lr": 1.0}, "algorithm": {"lr": 1, "tracking": 1.0}})
    with pytest.raises(ValueError, match=r"resume: cohort is 1\.0 now, but 1 in the checkpoint"):
        check_same(kept, kept | {"settings": {"cohort": 1.0, "lr": 1}})
    with pytest.raises(ValueError, match=r"resume: tracking is 1 now, but 1\.0 in the checkpoint"):
        check_same(kept, kept | {"algorithm": {"lr": 1.0, "tracking": 1}})


def test_the_report_knows_one_client_from_all(tmp_path):
    methods = {"a": {"algorithm": "fedavg", "cohort": 1}, "b": {"algorithm": "fedavg", "cohort": 1.0}}
    results = run_study(read(rounds=1, methods=methods, seeds=1), tmp_path, jobs=1, progress=False)
    assert "cohort" not in results["task"]
    assert [repr(results["methods"][name]["cohort"]) for name in "ab"] == ["1", "1.0"]


def test_dropped_answers_are_told(tmp_path, fedkeel):
    """A row that half of its clients made must not look like any other."""
    words = ["compare", "--algorithms", "fedavg,scaffold", "--set", "scaffold.lr=1e6", "--cohort", "4", "--clients", "10"]
    words += ["--rounds", "3", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path / "x")]
    code, told, _ = fedkeel(*words)
    assert code == 0
    good, bad = json.loads((tmp_path / "x" / "results.json").read_text())["rows"]
    history = [json.loads(line) for line in (tmp_path / "x" / "scaffold-seed0" / "metrics.jsonl").read_text().splitlines()]
    assert (good["dropped"], bad["dropped"]) == (0, sum(row["dropped"] for row in history))
    assert bad["dropped"] > 0
    assert f"dropped: scaffold: {bad['dropped']:g} answers of clients a run" in " ".join(told.split())
    assert "dropped: fedavg" not in told
    page = (tmp_path / "x" / "report.html").read_text()
    assert "dropped answers</button>" in page
    assert "Dropped answers: uploads per run that were lost because a client failed" in page


def test_of_gradient_norms_the_least_and_the_mean_are_kept():
    rows = [{"round": t, "up": 1, "down": 1, "dropped": 0, "seconds": 0.0, "gradient_norm": z}
            for t, z in enumerate((4.0, None, 1.0, 2.5))]  # fmt: skip
    found = of_run(Outcome("fedavg", 0, rows), [])
    assert (found["final_gradient_norm"], found["least_gradient_norm"], found["mean_gradient_norm"]) == (2.5, 1.0, 2.5)


def test_the_ends_of_a_range_are_what_was_said():
    assert read(sweep={"batch_size": {"from": 16, "to": 1024, "per_decade": 1}}).axes["batch_size"] == [16, 128, 1024]
    assert read(sweep={"lr": {"from": 0.12345, "to": 1.0, "per_decade": 1}}).axes["lr"] == [0.12345, 1.0]


def test_every_column_of_a_run_is_known(tmp_path):
    task = TASK | {"rounds": 1, "weight_decay": 0.01}
    for name, metrics in {"scaffold": METRICS.keys() - {"qp"}, "gradma": METRICS.keys() - {"tracking"}}.items():
        history = from_config.train(RunConfig(**task, algorithm=name, metrics=sorted(metrics)), progress=False).history
        for on in ("test_accuracy", "train_accuracy"):
            found = of_run(Outcome(name, 0, history, memory_mb=1.0), [0.01] * 4, on, cost=1)
            assert [column for column in found if not is_column(column)] == []
        deployed = [row | {"bytes_up": 80, "bytes_down": 90, "answered": [0], "fresh": []} for row in history]
        assert of_run(Outcome(name, 0, deployed), []).keys() == of_run(Outcome(name, 0, history), []).keys()
        assert curves([Outcome(name, 0, deployed)]).keys() == curves([Outcome(name, 0, history)]).keys()
