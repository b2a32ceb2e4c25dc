"""What the page of a study says about methods, targets, searches and seeds that failed: nothing is left to be guessed."""

import csv
import re
from html import unescape

import pytest

from fedkeel.study.compare import run_study
from fedkeel.study.report import svg
from fedkeel.study.report.figure import Axis, Lines, Series
from fedkeel.study.report.figures import figures
from fedkeel.study.report.page import page
from fedkeel.study.report.table_text import as_latex, robustness_text, screen_row, table_rows
from fedkeel.study.results.collect import as_csv
from fedkeel.study.study import Study

TASK = {"clients": 10, "rounds": 2, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential", "seeds": 1}
NOTHING = {"final_accuracy": None, "best_accuracy": None, "seeds": 0, "errors": {0: "dx is not finite"}}


def found(out, **file):
    return run_study(Study.read(TASK | file), out, jobs=1, progress=False)


def figure(results, name):
    return next(one for one in figures(results) if one.name == name)


def methods_of(results):
    """The table of hyper-parameters: line -> what it says."""
    table = re.search(r"<table class=\"methods\">.*?</table>", page(results, []), re.S)[0]
    return {name: unescape(told) for name, told in re.findall(r"<th scope=row>(.*?)</th><td>(.*?)</td>", table)}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two methods over an axis, and one that does not have it; two seeds and a target."""
    methods = {"scaffold-alpha": {"lr": 0.3}, "fedcm": {"lr": 0.3}, "fedavg": {"lr": 0.3}}
    out = tmp_path_factory.mktemp("swept")
    return found(out, methods=methods, sweep={"alpha": [0.1, 0.5, 1.0]}, seeds=2, target=0.05)


@pytest.fixture
def rows(swept):
    return [dict(row) for row in swept["rows"]]


# Methods and settings -------------------------------------------------------------------------------------------------


def test_what_a_method_has_for_itself_is_shown_with_it(tmp_path):
    methods = {"fedavg": {}, "mine": {"algorithm": "fedavg", "weight_decay": 0.01, "local_steps": 9, "metrics": ["drift"]}}
    cases = [{"name": "A", "concentration": 10.0}, {"name": "B", "concentration": 0.5}]
    results = found(tmp_path, methods=methods, cases=cases)
    shown = methods_of(results)
    assert shown["A | fedavg"].startswith("lr = 0.1")
    assert shown["A | mine"].startswith("fedavg: lr = 0.1")  # which it is not called
    for name, own in (("fedavg", ("0", "2", "none")), ("mine", ("0.01", "9", "drift"))):
        told = dict(z.split(" = ") for z in shown[f"B | {name}"].removeprefix("fedavg: ").split(", "))
        assert (told["weight_decay"], told["local_steps"], told["metrics"]) == own
        assert not {"concentration", "rounds", "algorithm", "seed"} & told.keys()  # the case's, all methods', every run's


def test_an_axis_is_no_setting_of_a_method(tmp_path):
    results = found(tmp_path, methods={"fedavg": {}}, sweep={"local_steps": [1, 2]}, rounds=1)
    assert "local_steps" not in "".join(methods_of(results).values())


def test_every_run_may_have_a_split_of_its_own(tmp_path):
    results = found(tmp_path, methods={"fedavg": {}}, resplit=True, rounds=1, seeds=[3, 4])
    assert "<dt>split_seed</dt><dd>each run&#39;s seed</dd>" in page(results, [])


def test_settings_that_mean_nothing_here_are_left_out(swept):
    assert not {"length", "ray_address"} & swept["task"].keys()  # digits are no texts, and there is no Ray


def test_rows_have_the_order_of_the_page(tmp_path):
    cases = [{"name": "A", "concentration": 10.0}, {"name": "B", "concentration": 0.5}]
    results = found(tmp_path, methods={"fedavg": {"lr": [0.1, 0.3]}, "scaffold": {}}, cases=cases, search={"case": "B"})
    order = ["A | fedavg", "A | scaffold", "B | fedavg", "B | scaffold"]
    assert [line["name"] for line in csv.DictReader(as_csv(results).splitlines())] == order
    assert list(methods_of(results)) == order


def test_a_search_is_told_once_and_with_its_trials(tmp_path):
    cases = [{"name": "A", "concentration": 10.0}, {"name": "B", "concentration": 0.5}]
    search = {"case": "B", "rounds": 1, "every": 2}
    results = found(tmp_path, methods={"fedavg": {"lr": [0.1, 0.3]}}, cases=cases, search=search)
    (told,) = re.findall("<summary>(.*?)</summary>", page(results, []))
    assert told.split("; ") == [
        *("fedavg: 2 trials, seed 1000, by best_accuracy", "searched in B, used in all cases"),
        *("1 round each", "evaluated every 2 rounds"),
    ]


def test_code_in_the_text_of_a_study(swept):
    text = page(swept | {"about": "As <they> do, `--model mlp-bn`."}, [])
    assert "As &lt;they&gt; do, <code>--model mlp-bn</code>." in text


def test_curves_that_are_left_out_are_where_the_page_says(swept):
    rows = [swept["rows"][0] | {"name": f"line {z}"} for z in range(17)]
    results = swept | {"rows": rows, "methods": {row["name"]: {} for row in rows}}
    assert "Curves of 17 lines could not be told apart and are left out; metrics.jsonl of every run has them." in page(
        results, []
    )
    assert "metrics.jsonl" not in page(swept, [])


def test_the_page_says_what_can_be_clicked(swept):
    assert "Click a heading to sort its table." in page(swept, [])


# Targets --------------------------------------------------------------------------------------------------------------


def test_a_target_on_the_training_set_is_named_and_drawn_there(tmp_path):
    results = found(tmp_path, methods={"fedavg": {"lr": 0.3}}, metrics=["train"], target=0.05, target_on="train_accuracy")
    drawn = {one.name: one for one in figures(results)}
    assert 'class="goal"' not in svg.draw(drawn["accuracy-rounds"]) + svg.draw(drawn["accuracy-floats"])
    row, name = results["rows"][0], "rounds to 0.05 training accuracy"
    assert name in table_rows([row])[0]
    assert name in screen_row(row, row["targets"])
    assert name in as_latex(results)
    assert drawn["rounds-to-0.05"].title == name.capitalize()
    row["targets"] = [
        0.5 * (drawn["train_accuracy-rounds"].y.low + drawn["train_accuracy-rounds"].y.high)
    ]  # inside the plot
    assert 'class="goal"' in svg.draw(figure(results, "train_accuracy-rounds"))


def test_the_dotted_line_has_a_name():
    drawn = svg.draw(Lines([Series("a", 0, [0, 10], [0.0, 1.0])], Axis("x", 0, 10), Axis("y", 0, 1), [0.7, 0.73, 0.99]))
    lines = [float(z) for z in re.findall(r'class="goal" d="M\d+ ([\d.]+)', drawn)]
    names = {z: float(y) for y, z in re.findall(r'y="([\d.]+)">target ([\d.]+)<', drawn)}
    assert names["0.7"] > lines[0]  # the next line is too near: below
    assert names["0.73"] < lines[1]
    assert names["0.99"] > lines[2] > svg.TOP  # above would be outside


def test_columns_say_what_they_are(swept):
    names = list(table_rows(swept["rows"])[0])
    assert names[:6] == [
        *("final accuracy", "best accuracy", "accuracy, mean of last 10 rounds"),
        *("rounds to 0.05", "floats to 0.05", "uploaded floats to 0.05"),
    ]
    plot = figure(swept, "train_loss-rounds")
    assert f"final {plot.title.partition(' against')[0].lower()}" in names  # the same words


def test_columns_do_not_depend_on_the_first_row(swept, rows):
    rows[1] = {"final_drift": 0.5} | rows[1] | {"cost": 3.0, "chosen": {"lr": 0.1}, "cost_to_target": 2.0, "memory_mb": 9.0}
    rows[0] = {key: z for key, z in rows[0].items() if not key.startswith("final_train")} | NOTHING
    lines = table_rows(rows)
    assert len({tuple(line) for line in lines}) == 1
    assert list(lines[0]) == list(table_rows(rows[::-1])[0])
    assert {lines[0][z] for z in ("final accuracy", "final mean local training loss", "chosen")} == {("-", None)}
    head, first = [line.split(" & ") for line in as_latex(swept | {"rows": rows}).splitlines() if line.endswith(r"\\")][:2]
    assert len(head) == len(first)
    names = as_csv(swept | {"rows": rows}).partition("\n")[0].split(",")
    assert names.index("final_train_loss") < names.index("failed")
    assert "" not in first


def test_the_target_of_another_case_is_left_empty(rows):
    first, second = table_rows([rows[0], rows[1] | {"targets": [0.9]}])
    assert list(first) == list(second)
    assert [first[f"rounds to {z}"][0] == "" for z in (0.05, 0.9)] == [False, True]
    assert [second[f"rounds to {z}"][0] == "" for z in (0.05, 0.9)] == [True, False]


def test_robustness_is_told_in_words(swept):
    one = {"decades": 0.0, "open": True, "axis": "lr"}
    assert robustness_text(one) == "at one value of lr only, an end of those that were tried"
    assert robustness_text(one | {"open": False}) == "at one value of lr only"
    assert robustness_text(one | {"decades": 1.234}) == "over at least 1.2 decades of lr"
    assert "A seed that failed counts as 0." in page(swept, [])


# Seeds that failed ----------------------------------------------------------------------------------------------------


def test_means_over_some_seeds_are_marked_in_figures(swept, rows):
    rows[1] |= {"seeds": 1, "errors": {1: "dx is not finite"}}
    results = swept | {"rows": rows}
    name = "scaffold-alpha | alpha = 0.5 (1 of 2 seeds)"
    assert name in [one for one, _ in figure(results, "accuracy-rounds").legend]
    assert re.search(r">[\d.]+ ± [\d.]+ \(1 of 2 seeds\)<", svg.draw(figure(results, "rounds-to-0.05")))
    sweep = figure(results, "sweep-alpha-final_accuracy")
    assert svg.draw(sweep).count('r="7"') == 1  # a ring around the point
    assert sweep.title.endswith("; rings: not of all seeds")
    assert "ring" not in figure(swept, "sweep-alpha-final_accuracy").title
    rows[-1] |= {"seeds": 1, "errors": {1: "dx is not finite"}}  # has no point on the axis
    assert "fedavg (1 of 2 seeds)" in dict(figure(results, "sweep-alpha-final_accuracy").legend)


def test_crosses_of_several_methods_are_seen(swept, rows):
    for row in rows[1], rows[4]:
        row |= NOTHING | {"rounds_to_target": None}
    for row in rows[3:]:  # fedcm, and fedavg, which does not have the axis
        row["rounds_to_target"] = None
    sweep = figure(swept | {"rows": rows}, "sweep-alpha-rounds_to_target")
    crosses = re.findall(r'd="M([\d.]+) ([\d.]+)L[^"]*" stroke="([^"]*)"', svg.draw(sweep))
    assert len(crosses) == 1 + 3 + 3
    assert len({(x, y) for x, y, _ in crosses}) == len(crosses)
    assert [name for name, _ in sweep.legend] == ["scaffold-alpha", "fedcm", "fedavg"]
    assert sweep.title.endswith("crosses: not reached or failed")
    accuracy = figure(swept | {"rows": rows}, "sweep-alpha-final_accuracy")
    down = [float(y) for _, y in re.findall(r'd="M([\d.]+) ([\d.]+)L', svg.draw(accuracy))]
    assert (len(down), down[1] < down[0] < svg.HEIGHT - svg.BOTTOM) == (2, True)  # from the lower edge, inwards


def test_heat_maps_of_a_case_have_one_scale(swept):
    rows = []
    for method, low in (("fedavg", 0.1), ("fedcm", 0.5)):
        for a, b in ((0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)):
            place = {"method": method, "name": f"{method} {a} {b}", "axes": {"a": a, "b": b}, "errors": {}}
            rows.append(swept["rows"][0] | place | {"final_accuracy": low + a, "best_accuracy": low + 2 * a})
    rows[0]["errors"] = {1: "dx is not finite"}
    results = swept | {"rows": rows, "axes": {"a": [0.1, 0.2], "b": [1, 2]}}
    drawn = {one.name: one for one in figures(results | {"curves": {row["name"]: {} for row in rows}})}
    for metric, low, high in (("final_accuracy", 0.2, 0.7), ("best_accuracy", 0.3, 0.9)):
        one, other = (drawn[f"heat-{method}-{metric}"] for method in ("fedavg", "fedcm"))
        assert f"colours from {low} to {high}" in one.title
        assert f"colours from {low} to {high}" in other.title
        assert svg.heat_colour(0.0) in svg.draw(one)
        assert svg.heat_colour(0.0) not in svg.draw(other)
        assert f">.{round(1000 * low)}*<" in svg.draw(one)
        assert ("*: not of all seeds" in one.title, "*" in other.title) == (True, False)


# Axes -----------------------------------------------------------------------------------------------------------------


def test_there_are_no_parts_of_rounds():
    assert [name for _, name in Axis("round", 0, 1, whole=True).ticks()] == ["0", "1"]
    assert [name for _, name in Axis("round", 0, 3, whole=True).ticks()] == ["0", "1", "2", "3"]


def test_large_numbers_on_an_axis():
    assert [name for _, name in Axis("floats", 0, 2e14).ticks()] == ["0", "50T", "100T", "150T", "200T"]
    assert [name for _, name in Axis("floats", 0, 2e16).ticks()][-1] == "2e16"
