"""`compare --tune`: equal rounds for every method, validation data decide, grids grow past an edge, edges are marked."""

import json
import math
from dataclasses import fields, make_dataclass

import pytest

import fedkeel as fk
from fedkeel.core.hyperparameters import hp
from fedkeel.study.compare import run_study
from fedkeel.study.report.write import report
from fedkeel.study.running.proposals import proposals
from fedkeel.study.running.space import Ladder, Space, grown, space_of
from fedkeel.study.study import Study
from fedkeel.study.study_result import StudyResult

TASK = {"clients": 6, "rounds": 4, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
METHODS = {
    "fedavg": {},
    "feddyn": {"lr": [0.01, 0.1], "alpha": [0.01, 0.1]},
    "padamfed": {},
    "fedprox": {"lr": 0.1, "mu": 0.1, "server_lr": 1.0},
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("tune") / "s"
    study = Study.read(TASK | {"methods": METHODS, "seeds": 2, "search": {"way": "fair", "trials": 9, "rounds": 3}})
    return out, run_study(study, out, jobs=1, progress=False)


def histories(out):
    return {path.parent.name: [json.loads(z) for z in path.read_text().splitlines()] for path in out.rglob("metrics.jsonl")}


def test_every_method_trains_the_same_number_of_rounds(tuned):
    out, results = tuned
    trials = histories(out / "search")
    spent = {method: sum(len(z) for name, z in trials.items() if name.startswith(f"{method}-")) for method in METHODS}
    assert spent == dict.fromkeys(METHODS, 27)
    assert "tuned with 27 rounds (9 trials" in results["tuning"]


def test_validation_data_decide_and_trials_have_no_test_data(tuned):
    out, results = tuned
    for rows in histories(out / "search").values():
        assert all(row["test_accuracy"] is None for row in rows)
        assert rows[-1]["val_accuracy"] is not None
    for search in results["search"]:
        trials = search["trials"]
        best = max(z["score"] for z in trials)
        assert next(z["score"] for z in trials if z["chosen"]) == best or len({str(z["trial"]["point"]) for z in trials}) < 9


def test_the_runs_that_count_train_on_all_samples_with_the_chosen_values(tuned):
    out, results = tuned
    rows = {name: z for name, z in histories(out).items() if not name.endswith("seed1000")}
    assert all(row.get("val_accuracy") is None for z in (rows["fedavg-seed0"], rows["feddyn-seed1"]) for row in z)
    chosen = {row["method"]: row["chosen"] for row in results["rows"]}
    assert set(chosen["feddyn"]) == {"lr", "alpha"}
    assert chosen["fedprox"] == {}  # all its values were given, so there was nothing to tune
    assert set(chosen["padamfed"]) >= {"lr", "gamma"}  # gamma depends on the number of rounds, and trials are shorter


def test_all_combinations_of_given_grids_are_tried(tuned):
    _, results = tuned
    trials = next(z["trials"] for z in results["search"] if z["name"] == "feddyn")
    assert {(a, b) for a in (0.01, 0.1) for b in (0.01, 0.1)} <= {(z["lr"], z["alpha"]) for z in trials}
    assert any(z["lr"] > 0.1 for z in trials)  # 0.1 was best, so the grid grew


def test_an_edge_is_marked_in_table_page_and_csv(tuned):
    out, results = tuned
    row = next(row for row in results["rows"] if row["edges"])
    assert " (edge)" in (out / "report.html").read_text()
    assert row["edges"][0] in (out / "table.csv").read_text()


def test_the_report_needs_neither_data_nor_optuna(tuned, monkeypatch):
    out, results = tuned
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    monkeypatch.setattr("fedkeel.runs.from_config.federation", None)
    report(out)
    again = StudyResult.read(out).results
    assert again["rows"] == results["rows"]
    assert again["search"] == json.loads(json.dumps(results["search"]))


def test_a_second_call_runs_nothing_and_fresh_runs_all(tuned):
    out, results = tuned
    times = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    study = Study.read(TASK | {"methods": METHODS, "seeds": 2, "search": {"way": "fair", "trials": 9, "rounds": 3}})
    assert run_study(study, out, jobs=1, progress=False)["rows"] == results["rows"]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == times
    run_study(study, out, jobs=1, progress=False, fresh=True)
    assert all(path.stat().st_mtime_ns > then for path, then in times.items())


def test_from_python_and_what_the_table_says_without_tuning(fedkeel):
    task = {key: z for key, z in TASK.items() if key != "model"} | {"seeds": 1, "progress": False, "jobs": 1}
    study = fk.compare("logistic", "digits", ["fedavg", "scaffold"], tune=True, search={"trials": 3}, **task)
    assert study.results["tuning"].startswith("Every method was tuned with 12 rounds")
    words = "compare --algorithms fedavg --clients 6 --rounds 1 --seeds 1 --model logistic --engine sequential --jobs 1"
    assert "Hyper-parameters: defaults, not tuned" in fedkeel(*words.split())[1]
    code, out, _ = fedkeel(*words.split(), "--tune", "--search", "trials=2", "--out", "runs/t")
    assert code == 0
    assert "tuned with 2 rounds" in out


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"metric": "final_accuracy"}, "metric = 'final_accuracy' is not allowed with way = 'fair'"),
        ({"rounds": 9}, "rounds = 9 is not allowed; fedavg has 4 rounds"),
        ({"trials": 0}, "search.trials = 0"),
        ({"seed": 0}, "seed = 0 is not allowed"),
    ],
)
def test_a_wrong_search_is_refused(search, message):
    with pytest.raises(ValueError, match=message):
        Study.read(TASK | {"methods": {"fedavg": {}}, "search": {"way": "fair"} | search})


# Which values are tried ---


def ladder(low=-16, high=16):
    """Step sizes around 1, four to a decade."""
    values = tuple(10.0 ** (k / 4) for k in range(low, high + 1))
    return Ladder(values, -low, (-low - 4, -low, -low + 4), (4, 2))


def tried(cost, count=10, **ladders):
    """The values that a search tries for a cost, in their order."""
    space = Space(ladders or {"lr": ladder()})
    search = proposals(space, count, 0, "fedavg")
    found, wave = [], next(search)
    while True:
        found += [space.values(point) for point in wave]
        try:
            wave = search.send([cost(**space.values(point)) for point in wave])
        except StopIteration:
            return found


@pytest.mark.parametrize("best", [-11, 0, 13])
def test_a_grid_grows_until_its_best_value_is_inside(best):
    def cost(lr):
        return abs(4 * math.log10(lr) - best)

    found = [round(4 * math.log10(z["lr"])) for z in tried(cost)]
    assert min(found) < best < max(found)
    assert best in [round(4 * math.log10(z["lr"])) for z in tried(cost, count=16)]
    assert tried(cost) == tried(cost)  # the same proposals again


def test_a_grid_stops_at_the_limit_of_sense_and_shrinks_after_failures():
    assert max(z["lr"] for z in tried(lambda lr: -lr, lr=ladder(high=8))) == 100
    assert min(z["lr"] for z in tried(lambda lr: math.inf, count=6)) == pytest.approx(1e-4)


def test_two_hyperparameters_grow_together():
    """The best values of two hyper-parameters depend on each other, and both lie outside of the grids."""

    def cost(lr, alpha):
        return (math.log10(lr) - 2) ** 2 + (math.log10(alpha) - math.log10(lr)) ** 2

    alpha = grown(_field(above=0), [0.01, 0.1, 1.0], 0.1)
    found = tried(cost, 24, lr=grown(_field(above=0), [0.1, 1.0], None), alpha=alpha)
    assert min(found, key=lambda z: cost(**z)) == {"lr": 100.0, "alpha": 100.0}


def _field(**limits):
    return fields(make_dataclass("M", [("z", float, hp(0.1, "z", **limits))]))[0]


def test_ladders_end_where_a_value_makes_no_sense():
    assert grown(_field(least=0, below=1), [0.1, 0.5, 0.9], 0.5).values == (0.0, 0.1, 0.5, 0.9, 0.98, 0.996, 0.9992)[:-1]
    assert grown(_field(above=0, most=1), [0.05, 0.1], 0.1).values[-1] == 0.8
    assert grown(_field(above=0), [0.01, 0.1], 0.1).values[0] == 1e-5
    assert grown(_field(least=0), [0, 10, 20], 10).values == (0, 10, 20)  # counts do not grow
    assert not grown(_field(), ["a", "b"], "a").ordered


def test_fedlada_begins_with_longer_steps_the_smaller_alpha_is():
    """alpha multiplies its local direction, so the best lr grows with 1 / alpha."""
    fed = fk.load("digits").split("iid", clients=6)
    for alpha, first in ((0.05, 0.02), (1.0, 0.001)):
        study = Study.read(TASK | {"methods": {"fedlada": {"alpha": alpha}}, "seeds": 1})
        lr = space_of(study.branches[0], fed).ladders["lr"]
        assert lr.values[lr.start] == first


def test_a_point_that_is_repeated_counts_by_its_mean():
    """With one hyper-parameter of two values, trials are left over. They repeat the points with other seeds."""
    space = Space({"lr": Ladder((1.0, 2.0), 0, (0, 1))})
    search = proposals(space, 12, 0, "fedavg")
    points, wave = [], next(search)
    while True:
        points += [point["lr"] for point in wave]
        try:
            wave = search.send([1.0 if point["lr"] else 2.0 for point in wave])
        except StopIteration:
            break
    assert len(points) == 12
    assert min(points.count(0), points.count(1)) > 3
