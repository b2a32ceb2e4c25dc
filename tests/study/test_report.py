"""The report: what it says, its files, and the page in a real browser."""

import csv
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from html import unescape

import pytest
import torch

import fedkeel as fk
from fedkeel.cli import tables as screen
from fedkeel.engine.state import directory, history_file
from fedkeel.runs import trackers
from fedkeel.study.changes import tell_changes
from fedkeel.study.compare import run_study
from fedkeel.study.report import figure, paper_figures, svg
from fedkeel.study.report.figure import SETTING, Axis, Bar, Bars, Bubbles, Figure, Heat, Lines, Series, style
from fedkeel.study.report.figures import figures, line_styles
from fedkeel.study.report.page import page
from fedkeel.study.report.table_text import (
    as_latex,
    differs,
    in_paper_units,
    paper_column_titles,
    screen_row,
    table_rows,
    with_deviation,
)
from fedkeel.study.report.write import file_names, report, results_of
from fedkeel.study.results.collect import as_csv
from fedkeel.study.results.numbers import NOT_RUN
from fedkeel.study.running.scheduler import run_branches
from fedkeel.study.study import Study
from fedkeel.wording import amount

TASK = {"clients": 10, "rounds": 4, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
FILE = TASK | {
    "title": "A study <of> & methods",
    "about": "What it shows.",
    "seeds": 2,
    "target": [0.2, 0.3],
    "metrics": ["drift"],
    "methods": {"fedavg": {"lr": [0.01, 0.3], "cost": 1}, "scaffold": {"lr": 0.3}},
    "cases": [{"name": "unlike", "concentration": 0.1}, {"name": "alike", "concentration": 100.0}],
    "paper": [{"metric": "best_accuracy", "where": "Table 7", "values": {"fedavg": ["99.9±0.1", "-"], "scaffold": [1, 2]}}],
}
chromium = pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="no Chromium is installed"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """(directory, results) of a study with cases, a search, measurements and a paper's numbers."""
    out = tmp_path_factory.mktemp("study")
    return out, run_study(Study.read(FILE), out, progress=False, jobs=1, command="fedkeel compare <x>")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    file = TASK | {"methods": {"gradma-s": {}, "fedavg": {}}, "seeds": 1}
    file |= {"rounds": 2, "sweep": {"beta1": [0.0, 0.5], "lr": [0.01, 0.1, 1.0]}}
    return out, run_study(Study.read(file), out, jobs=1, progress=False)


# Content --------------------------------------------------------------------------------------------------------------


def test_the_page_has_everything(study):
    out, results = study
    text = (out / "report.html").read_text()
    for words in ("A study &lt;of&gt; &amp; methods", "What it shows.", "fedkeel compare &lt;x&gt;", "Table 7", "99.9±0.1"):
        assert words in text
    assert not re.search(r"(src|href)\s*=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)  # nothing from elsewhere
    assert len(text) < 500_000
    assert "2 trials, seed 1000, by best_accuracy" in text
    assert "≠" in text  # ours is far from 99.9
    for drawn in figures(results):
        assert f"data-id='{drawn.case}/{drawn.name}'" in text
    assert {one.name for one in figures(results)} == {
        *("accuracy-rounds", "accuracy-floats", "train_loss-rounds", "drift-rounds", "cosine-rounds"),
        *("rounds-to-0.2", "rounds-to-0.3", "partition"),
    }


def test_all_columns_can_be_sorted(study):
    results = study[1]
    odd = [row | {"chosen": {"lr": 0.1}, "edges": [], "axes": {"split": "it's"}} for row in results["rows"]]
    text = page(results | {"rows": odd, "axes": {"split": ["it's"]}}, [])
    table = re.search(r'<table class="summary.*?</table>', text, re.S)[0]
    values = [re.findall(r"data-value='([^']*)'>", line) for line in table.split("<tr>")[2:]]
    heads = table.count("<button")
    assert [len(z) for z in values] == [heads] * 2  # a quote in a value does not end it
    assert {(z[1], z[-1]) for z in values} == {("it&#39;s", "lr 0.1")}


def test_missed_targets_are_sorted_after_those_that_were_reached(study):
    row = study[1]["rows"][0]
    missed = {key: None for key in row if "_to_target" in key and not key.startswith("reached")}
    by = [
        line["floats to 0.2"][1]
        for line in table_rows([row, row | missed | {"reached_target": 1}, row | missed | {"reached_target": 0}])
    ]
    assert by == sorted(set(by))  # >200 (1/2) before >200
    none = row | missed | {"reached_target": 0, "seeds": 0}
    assert table_rows([none])[0]["rounds to 0.2"] == ("-", None)  # no run: after all, whatever the order


def test_what_is_not_seen_is_told(study):
    """To those who hear the page, and to those who have no pointer for titles that pop up."""
    text = (study[0] / "report.html").read_text()
    assert text.count('role="img"') == text.count("<figure") == len(re.findall(r'role="img" aria-label="\w[^"]+"', text))
    assert 'aria-label="Test accuracy against rounds"' in (study[0] / "report" / "alike-accuracy-rounds.svg").read_text()
    assert text.count("<th") == text.count("<thead") + len(re.findall("<th scope=(row|col)[ >]", text))
    assert "≠: apart by more than the two deviations together" in text


def test_files(study):
    folder = study[0] / "report"
    for path in folder.glob("*.svg"):
        root = xml.parse(path).getroot()
        assert root.tag.endswith("svg")
    drawn = xml.parse(folder / "unlike-accuracy-rounds.svg").getroot()
    lines = [z for z in drawn.iter() if z.tag.endswith("polyline")]
    assert [len(z.get("points").split()) for z in lines] == [4, 4]  # two methods, four rounds
    assert [z.text for z in drawn.iter() if z.tag.endswith("text")][-2:] == ["fedavg", "scaffold"]
    table = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert len(table) == 4
    assert float(table[0]["chosen_lr"]) == study[1]["rows"][0]["chosen"]["lr"]
    assert table[0]["paper_best_accuracy"] == "99.9±0.1"
    latex = (folder / "table.tex").read_text()
    assert latex.count(r"\begin{tabular}") == 2
    widths = {line.count("&") for line in latex.splitlines() if line.endswith(r"\\")}
    assert len(widths) == 1
    assert "_" not in re.sub(r"\\_", "", as_latex(study[1]))


def test_figures_in_files_need_no_browser(study):
    for path in (study[0] / "report").glob("*.svg"):  # variables of CSS are unknown to Inkscape, and the lines would be gone
        text = path.read_text()
        assert "var(" not in text
        assert {svg.LIGHT["ink"], svg.DARK["ink"]} < set(re.findall(r"#\w+", text))


def test_a_sweep_has_heat_maps_and_the_order_of_its_axes(swept):
    out, results = swept
    heat = next(one for one in figures(results) if one.name == "heat-gradma-s-best_accuracy")
    assert svg.draw(heat).count("<rect") == 6
    again = json.loads((out / "results.json").read_text())
    report(out)
    text = (out / "report.html").read_text()
    assert "it has not been run" not in text  # the runs are found again, whatever order TOML gives the axes
    assert list(again["axes"]) == ["beta1", "lr"]


def test_a_large_sweep_has_the_looks_of_its_methods():
    """Its lines are not drawn, but their methods are: the keys in the table are those of the curves over the axis."""
    rows = [{"name": f"{m} | lr = {z}", "method": m, "case": ""} for m in ("fedavg", "scaffold") for z in range(9)]
    assert list(line_styles({"rows": rows}).values()) == [0] * 9 + [1] * 9
    several = [method + SETTING * setting for method in (0, 1) for setting in range(5)]  # a method keeps its colour
    assert list(line_styles({"rows": rows[4:14]}).values()) == several


def test_one_axis_is_a_curve(tmp_path):
    file = TASK | {"methods": {"fedavg": {}, "padamfed": {}}, "sweep": {"lr": [0.01, 0.1, 1.0]}, "seeds": 1, "rounds": 2}
    results = run_study(Study.read(file), tmp_path, jobs=1, progress=False)
    curve = next(one for one in figures(results) if one.name == "sweep-lr-final_accuracy")
    assert [one.x for one in curve.series] == [[0.01, 0.1, 1.0]] * 2
    assert results["robustness"][0]["decades"] >= 0
    text = (tmp_path / "report.html").read_text()
    table = re.search(r"<h2>Robustness.*?</table>", text, re.S)[0]
    assert re.findall(r"<th scope=col>(.*?)</th>", table) == ["method", "best final accuracy", "within 5 % of it"]
    assert "<dt>metrics</dt><dd>none</dd>" in text


def test_a_missing_point_is_a_gap(tmp_path):
    file = TASK | {"methods": {"fedavg": {}}, "sweep": {"lr": [0.01, 0.03, 0.1, 0.3, 1.0]}, "seeds": 2, "rounds": 2}
    results = run_study(Study.read(file), tmp_path, jobs=1, progress=False)
    results["rows"][2] |= {"final_accuracy": None, "final_accuracy_std": None}
    curve = next(one for one in figures(results) if one.name == "sweep-lr-final_accuracy")
    root = xml.fromstring(svg.draw(curve))
    lines, bands = ([z.get("points").split() for z in root.iter() if z.tag.endswith(k)] for k in ("polyline", "}polygon"))
    assert [len(z) for z in lines] == [2, 2]
    assert [len(z) for z in bands[:2]] == [4, 4]
    assert curve.series[0].y[2] is None
    assert "nan" not in svg.draw(curve)
    lowest = min(row["final_accuracy"] - row["final_accuracy_std"] for row in results["rows"] if row["final_accuracy"])
    assert curve.y.low == pytest.approx(lowest, abs=0.05)  # what is missing is no 0
    assert "crosses" in curve.title
    cross = re.findall(r'<path d="M([\d.]+) ([\d.]+)L', svg.draw(curve))
    assert len(cross) == 1  # it failed, and is seen to have failed, on the lower edge
    assert float(cross[0][1]) == pytest.approx(svg.HEIGHT - svg.BOTTOM - 4, abs=0.2)


def test_one_seed_that_is_left_has_no_band_and_the_others_have(tmp_path):
    file = TASK | {
        "methods": {"fedavg": {}, "padamfed": {"lr": 0.1}},
        "sweep": {"alpha": [0.1, 1.0]},
        "seeds": 2,
        "rounds": 2,
    }
    file["methods"]["fedcm"] = {}
    results = run_study(Study.read(file), tmp_path, jobs=1, progress=False)
    rows = [row for row in results["rows"] if row["method"] == "fedcm"]
    rows[0] |= {"seeds": 1, "best_accuracy_std": None, "errors": {1: "no memory"}}
    curve = next(one for one in figures(results) if one.name == "sweep-alpha-best_accuracy")
    assert {"fedavg", "padamfed", "fedcm"} == set(re.findall(r'<polygon [^>]*data-of="([^"]*)"', svg.draw(curve)))


def test_costs_to_target_are_drawn_over_an_axis(tmp_path):
    method = {"fadamgt": {"lr": 0.01, "cost": {"fixed": 3, "tracking": 1}}, "fedavg": {"lr": 0.3, "cost": 2}}
    file = TASK | {"methods": method, "sweep": {"tracking": [1, 3]}, "seeds": 1, "target": 0.05}
    results = run_study(Study.read(file), tmp_path, jobs=1, progress=False)
    drawn = {one.name: one for one in figures(results)}
    rounds, cost = (drawn[f"sweep-tracking-{z}_to_target"].series[0].y for z in ("rounds", "cost"))
    assert cost == pytest.approx([rounds[0] * (3 + 1 / 3), rounds[1] * 4])
    for row in results["rows"]:
        if row["method"] == "fedavg":  # of a method without a cost, which has not got there
            del row["cost_to_target"], row["cost_to_target_std"]
            row |= {"rounds_to_target": None, "rounds_to_target_std": None}
    assert "sweep-tracking-cost_to_target" in {one.name for one in figures(results)}
    for row in results["rows"]:
        row["cost_to_target"] = None
    assert "sweep-tracking-floats_to_target" in {one.name for one in figures(results)}  # no paper counts: what was sent


def test_a_study_under_way_and_a_single_run(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}, "scaffold": {}}, "seeds": 2})
    run_study(study, tmp_path, jobs=1, progress=False)
    for seed in (0, 1):
        shutil.rmtree(tmp_path / f"scaffold-seed{seed}")
    text = report(tmp_path).read_text()
    assert "Runs that are not complete yet" in text
    assert "<li><b>scaffold</b>, seeds 0, 1</li>" in text
    assert "Runs that failed" not in text
    assert "made from Python" in text
    (tmp_path / "origin.json").unlink()  # as with runs that were copied
    text = report(tmp_path).read_text()
    assert "made from Python" not in text
    assert f"again: fedkeel compare {tmp_path}/study.toml" in text
    single = report(tmp_path / "fedavg-seed0").read_text()
    assert f"<pre>fedkeel run {tmp_path}/fedavg-seed0/config.toml</pre>" in single
    assert (tmp_path / "fedavg-seed0" / "report" / "accuracy-rounds.svg").exists()
    with pytest.raises(ValueError, match="holds neither a study"):
        report(tmp_path / "nothing")
    assert run_branches(study, tmp_path, jobs=1, progress=False)[1].outcomes[0].error is None  # and it goes on from there


def test_bars_say_the_same_as_the_table(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {"lr": 0.3}, "scaffold": {}, "fedprox": {}}, "seeds": 2, "target": 0.2})
    run_study(study, tmp_path, jobs=1, progress=False)
    for path in tmp_path.glob("scaffold-*"):
        shutil.rmtree(path)
    for path in tmp_path.glob("fedprox-*"):
        (path / "summary.json").unlink()
        directory.mark_failed(path, "no memory")
    results = results_of(tmp_path)
    bars = next(one for one in figures(results) if one.name == "rounds-to-0.2")
    texts = re.findall(r'class="faint" x="([^"]*)"[^>]*>([^<]*)<', svg.draw(bars, alone=True))
    assert [z for _, z in texts[:2]] == [table_rows(results["rows"])[0]["rounds to 0.2"][0], "not run"]
    assert texts[2][1] == "failed"
    assert all(float(x) + 7 * len(text) <= svg.WIDTH for x, text in texts[:3])
    for path in tmp_path.glob("fed*-seed*"):
        shutil.rmtree(path)
    assert not any(one.name.startswith("rounds-to") for one in figures(results_of(tmp_path)))  # nothing was run yet


def test_apart_from_the_paper():
    row = {"paper": {"best_accuracy": "90±1", "rounds_to_target": "-"}, "best_accuracy": 0.92, "best_accuracy_std": 0.005}
    row |= {"seeds": 3, "rounds_to_target": 5.0, "evaluate_every": 1}
    best, rounds = ({"metric": z, "comparable": True} for z in ("best_accuracy", "rounds_to_target"))
    assert differs(row, best)
    assert not differs(row, best | {"comparable": False})
    assert not differs(row | {"best_accuracy_std": 0.02}, best)
    assert differs(row, rounds)  # it did not get there, we did
    assert not differs(row | {"rounds_to_target": None}, rounds)
    missed = row | {"rounds_to_target": None, "rounds": 40, "paper": {"rounds_to_target": "47±5"}}
    assert not differs(missed, rounds)  # we might have got there in time
    assert differs(missed | {"rounds": 53}, rounds)
    seldom = row | {"rounds_to_target": 50.0, "paper": {"rounds_to_target": "41"}}
    assert differs(seldom, rounds)
    assert not differs(seldom | {"evaluate_every": 10}, rounds)  # ours may have been there at 41, unseen


def test_numbers_of_some_seeds_say_so(study):
    row = study[1]["rows"][0] | {"seeds": 1, "errors": {1: "dx is not finite", 2: NOT_RUN}}
    assert in_paper_units(row, "best_accuracy").endswith(" (1 of 3 seeds)")
    assert screen_row(row)["method"].endswith("(1 failed, 1 not run)")
    assert "(1 failed, 1 not run)" in page(study[1] | {"rows": [row, *study[1]["rows"][1:]]}, [])
    assert "(1 of 3 seeds) &" in as_latex(study[1] | {"rows": [row]})
    line = next(csv.DictReader(as_csv(study[1] | {"rows": [row]}).splitlines()))
    assert (line["failed"], line["not_run"], line["target"], line["second"]) == ("1", "1", "0.2", "0.3")
    none = row | {"seeds": 0, "errors": dict.fromkeys(range(3), "dx is not finite")}
    assert in_paper_units(none, "best_accuracy") == "3 failed"


def test_our_target_stands_beside_the_papers_numbers(study):
    paper = {"metric": "rounds_to_second", "at": ["unlike", "alike"], "comparable": True}
    rows = [row | {"targets": [0.2, 0.3 if row["case"] == "alike" else 0.6]} for row in study[1]["rows"]]
    assert paper_column_titles(rows, paper) == ["unlike, to 0.6", "alike, to 0.3"]
    assert paper_column_titles(rows, paper | {"metric": "best_accuracy"}) == ["unlike", "alike"]


@pytest.mark.parametrize(
    ("mean", "deviation", "shown"),
    [
        (2.1614, 0.00022, "2.161 ± 0.000"),
        (0.33602, 0.0299, "0.3360 ± 0.0299"),
        (0.5, 0.03, "0.5000 ± 0.0300"),
        (100.0, 0.3, "100.0 ± 0.3"),
        (1.234e-7, 2.2e-8, "(1.234 ± 0.220)e-07"),
        (5e-324, 0.0, "(4.941 ± 0.000)e-324"),
        (math.inf, 1.0, "inf ± 1"),
    ],
)
def test_a_deviation_has_the_decimals_of_its_mean(mean, deviation, shown):
    assert with_deviation({"z": mean, "z_std": deviation}, "z", ".4g") == shown


def test_versions_are_those_of_the_runs(study, monkeypatch):
    text = (study[0] / "report.html").read_text()
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")
    assert "9.9.9" not in report(study[0]).read_text()
    assert re.search(r"<dt>torch</dt><dd>2\.", text)
    assert "<dt>machine</dt>" in text


def test_a_recipe_says_what_options_have_changed():
    file = {"about": "As the paper.", "paper": [{"metric": "best_accuracy"}, {"metric": "rounds_to_target"}]}
    assert tell_changes(file, {"seeds": None, "data_dir": "here"}) == file
    other = tell_changes(file, {"rounds": 10, "target": 0.5})
    assert other["about"].endswith("rounds = 10, target = 0.5. As the paper.")
    assert [one.get("comparable", True) for one in other["paper"]] == [False, False]
    told = tell_changes(file, {}, ["fedavg.lr=0.1", "search way=grid"])["about"]
    assert "fedavg.lr = 0.1, search way = grid. As" in told


@pytest.mark.parametrize(
    ("options", "accuracy", "rounds"),
    [
        ({"data": "digits"}, False, False),
        ({"model": "lenet5"}, False, False),
        ({"model": "mlp"}, False, False),  # the text names another, whose name begins like it
        ({"model": "mlp-bn"}, True, True),  # a reading of the paper, which the recipe offers
        ({"rounds": 10}, False, True),  # until a target they are counted all the same
        ({"target": 0.5}, True, False),
        ({"evaluate_every": 5, "seeds": 1}, True, True),
    ],
)
def test_numbers_of_another_task_are_not_comparable(options, accuracy, rounds):
    paper = [{"metric": "best_accuracy"}, {"metric": "rounds_to_target"}]
    file = {"about": "The released code has another network, `--model mlp-bn`.", "paper": paper}
    told = tell_changes(file, options)["paper"]
    assert [one.get("comparable", True) for one in told] == [accuracy, rounds]
    paper = [{"metric": "rounds_to_best"}, {"metric": "at_target_accuracy"}]  # by what they depend on, not by their names
    told = tell_changes(file | {"paper": paper}, options)["paper"]
    assert [one.get("comparable", True) for one in told] == [accuracy, rounds]


def test_latex_takes_any_name(study):
    row = study[1]["rows"][0] | {"method": r"[$x^2$ <50 % ~ \a_b {c} | #1 & d"}
    line = next(z for z in as_latex(study[1] | {"rows": [row]}).splitlines() if "x" in z and "50" in z)
    name = r"{[}\$x\textasciicircum 2\$ $<$50 \% \textasciitilde \space \textbackslash a\_b \{c\} $|$ \#1 \& d"
    assert line.startswith(name + " & ")


def test_latex_has_the_columns_of_all_rows(study):
    results = study[1]
    later = [row | {"final_more": 0.25, "final_more_std": None} for row in results["rows"][1:]]
    head, *body = [z for z in as_latex(results | {"rows": [results["rows"][0], *later]}).splitlines() if z.endswith(r"\\")]
    assert "final more" in head
    assert {line.count("&") for line in body[:2]} == {head.count("&")}
    assert "0.25" in body[1]


def test_a_whole_number_and_a_fraction_are_the_same_column(tmp_path):
    paper = {"metric": "best_accuracy", "where": "Table 1", "at": [0, 1], "values": {"scaffold-alpha": [77.7, 88.8]}}
    file = TASK | {"methods": {"scaffold-alpha": {}}, "sweep": {"alpha": [0.0, 1.0]}, "seeds": 1, "rounds": 1}
    run_study(Study.read(file | {"paper": [paper]}), tmp_path, jobs=1, progress=False)
    table = re.search(r"<table class=papers>.*?</table>", (tmp_path / "report.html").read_text(), re.S)[0]
    assert "<td></td>" not in table
    assert ("77.7" in table, "88.8" in table) == (True, True)


def test_the_screen_marks_what_is_apart_too(study, capsys):
    screen.comparison(study[1], study[0])
    ours, theirs = [line.split() for line in capsys.readouterr().out.partition("beside Table 7")[2].splitlines()[4:6]]
    assert (ours[:2], theirs[:2]) == (["fedavg", "ours"], ["paper", "99.9±0.1"])
    assert "≠" in ours


def test_what_was_sent_without_reaching_a_target_is_told(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}}, "seeds": 1, "target": 0.999})
    row = run_study(study, tmp_path, jobs=1, progress=False)["rows"][0]
    shown = {**screen_row(row, [0.999]), **{name: text for name, (text, _) in table_rows([row])[0].items()}}
    assert shown["floats to 0.999"] == f">{amount(row['floats'])}"
    assert shown["uploaded floats to 0.999"] == f">{amount(row['up'])}"


def test_a_loss_that_is_not_finite_spoils_neither_study_nor_page(tmp_path):
    study = Study.read(TASK | {"methods": {"fedavg": {}, "fedprox": {}}, "seeds": 2})
    run_branches(study, tmp_path, jobs=1, progress=False)
    path = tmp_path / "fedavg-seed0" / "metrics.jsonl"
    rows = directory.history(path.parent)
    rows[-1]["train_loss"] = math.inf
    path.write_bytes(b"".join(map(history_file._line, rows)))
    results = run_study(study, tmp_path, jobs=1, progress=False)
    assert (results["rows"][0]["final_train_loss"], results["rows"][0]["final_train_loss_std"]) == (math.inf, None)

    def refused(word):
        raise AssertionError(f"{word} is no JSON")

    again = json.loads((tmp_path / "results.json").read_text(), parse_constant=refused)
    assert again["rows"][0]["final_train_loss"] is None
    page = (tmp_path / "report.html").read_text()
    json.loads(re.search(r'id="found">(.*?)</script>', page)[1], parse_constant=refused)
    for path in (tmp_path / "report").glob("*.svg"):
        assert not re.search(r'="[^"]*\b(inf|nan)\b', path.read_text())


def test_a_run_without_accuracies_has_a_page(tmp_path):
    """A regression, or a run without test data."""
    x, y = torch.randn(12, 3), torch.randn(12, 1)
    for name, test in (("regression", (x, y)), ("untested", None)):
        fed = fk.Federation.from_arrays([(x[:6], y[:6]), (x[6:], y[6:])], test=test)
        options = {"cohort": 2, "local_steps": 1, "batch_size": 3, "progress": False, "engine": "sequential"}
        model, loss = torch.nn.Linear(3, 1), torch.nn.functional.mse_loss
        fk.train(model, fed, "fedavg", rounds=3, loss=loss, out=tmp_path / name, **options)
        text = report(tmp_path / name).read_text()
        assert "Mean local training loss against rounds" in text
        assert "Test accuracy against rounds" not in text
        assert "model and data were Python objects" in re.search("<pre>(.*)</pre>", text)[1]  # no command makes it again


def test_a_search_says_on_the_screen_what_it_chose(study, capsys):
    screen.comparison(study[1], study[0])
    assert re.search(
        r"search: unlike \| fedavg: lr 0\.(01|3); lr .* is the (smallest|largest) value of its grid\n",
        capsys.readouterr().out,
    )


def test_bars_of_a_sweep_are_named_by_their_values(swept):
    results = swept[1]
    rows = [row | {"targets": [0.1], "rounds_to_target": 1.0, "rounds_to_target_std": None} for row in results["rows"]]
    bars = next(one for one in figures(results | {"rows": rows}) if one.name == "rounds-to-0.1")
    assert bars.title == "Rounds to 0.1 (method, beta1, lr)"
    assert {"gradma-s 0.5, 0.01", "fedavg 0.01"} <= set(re.findall(r'text-anchor="end">([^<]*)<title>', svg.draw(bars)))


def test_figures_have_names_of_their_own(swept):
    drawn = [Figure(name=f"heat-{z}") for z in ("a (x)", "a x", "b", "a [x]")]
    assert file_names(drawn) == ["heat-a_x", "heat-a_x~2", "heat-b", "heat-a_x~3"]


# Drawing --------------------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_inside():
    assert [name for _, name in Axis("", 0, 100).ticks()] == ["0", "20", "40", "60", "80", "100"]
    assert [name for _, name in Axis("", 0.31, 0.94).ticks()] == ["0.4", "0.6", "0.8"]
    assert [name for _, name in Axis("", 1e-4, 1, log=True).ticks()] == ["0.0001", "0.001", "0.01", "0.1", "1"]
    assert [name for _, name in Axis("", 0.15, 2.5, log=True).ticks()] == ["0.2", "0.5", "1", "2"]
    assert [name for _, name in Axis("", 1.7, 2.4, log=True).ticks()] == ["1.8", "2", "2.2", "2.4"]
    assert [name for _, name in Axis("", 0, 3e6).ticks()] == ["0", "1M", "2M", "3M"]


def test_a_point_is_where_it_belongs():
    drawn = svg.draw(Lines([Series("a", 0, [0, 10], [0.0, 1.0])], Axis("x", 0, 10), Axis("y", 0, 1)))
    first, last = re.search(r'points="([^"]*)"', drawn)[1].split()
    assert first == f"{svg.LEFT:.1f},{svg.HEIGHT - svg.BOTTOM:.1f}"
    assert last == f"{svg.WIDTH - svg.RIGHT:.1f},{svg.TOP:.1f}"


def test_the_label_of_an_axis_is_beside_its_ticks():
    drawn = svg.draw(Lines([Series("a", 0, [0, 10], [1e-4, 1.0])], Axis("x", 0, 10), Axis("y", 1e-4, 1, log=True)))
    label = float(re.search(r"translate\((\d+)", drawn)[1])
    ticks = re.findall(r'class="tick" x="([^"]*)"[^>]*text-anchor="end">([^<]*)<', drawn)
    assert min(float(x) - 7 * len(text) for x, text in ticks) > label + 3  # below the line of a text


def test_long_names_leave_room_for_bars():
    names = [f"fedadam-amended | server_lr = 0.0001, concentration = 0.1, alpha = {z}" for z in (0.1, 0.2)]
    drawn = svg.draw(Bars([Bar(name, i, 10.0 * i + 1, 0.5, "told") for i, name in enumerate(names)], "rounds"))
    assert min(float(z) for z in re.findall(r'<rect[^>]* width="([^"]*)"', drawn)) > 0
    assert all(f"<title>{name}</title>" in drawn for name in names)
    assert re.findall(r'end">(.*?)<title>', drawn) == ["fedadam-ame… alpha = 0.1", "fedadam-ame… alpha = 0.2"]


def test_long_names_in_the_legend_of_a_file_do_not_run_into_each_other():
    names = [f"fedadam-amended | server_lr = 0.0001, alpha = {z}" for z in (0.1, 0.2, 0.3)]
    for those, rows in ((names, 3), (["fedavg", "scaffold", "moon"], 2), (["x" * 200], 1)):
        drawn = svg.draw(
            Lines([Series(z, i, [0, 1], [0.0, 1.0]) for i, z in enumerate(those)], Axis("x"), Axis("y")), alone=True
        )
        texts = list(xml.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"))[-len(those) :]
        assert len({z.get("y") for z in texts}) == rows
        starts = sorted({float(z.get("x")) for z in texts})
        ends = [starts[1] - 37, svg.WIDTH] if len(starts) > 1 else [svg.WIDTH]  # 37: the line before a name
        assert all(float(z.get("x")) + 7 * len(z.text) <= ends[starts.index(float(z.get("x")))] for z in texts)


def test_names_beside_a_heat_map_are_in_the_picture():
    names = ["iid", "dirichlet_per_client", "x" * 90]
    x, y = Axis("weights", names=["uniform", "s" * 60]), Axis("split", names=names)
    drawn = svg.draw(Heat([[0.1, 0.2]] * 3, x, y, (0.1, 0.2)))
    ticks = re.findall(r'class="tick" x="([^"]*)"[^>]*text-anchor="(\w+)">([^<]*)<', drawn)
    assert [text for *_, text in ticks if len(text) < 24][-2:] == names[:2]
    for x, anchor, text in ticks[2:]:
        start = float(x) - 7 * len(text) / (1 if anchor == "end" else 2)
        assert 16 < start < start + 7 * len(text) <= svg.WIDTH + 1  # beside the label of the axis


def test_names_below_a_heat_map_do_not_run_into_each_other():
    names = [f"{10.0 ** (z / 3):.3g}" for z in range(-12, 1)]
    drawn = svg.draw(Heat([[0.1] * 13] * 2, Axis("lr", names=names), Axis("beta1", names=["0", "0.5"]), (0.0, 1.0)))
    ticks = re.findall(r'<g transform="rotate\(-45 ([\d.]+) ([\d.]+)\)"><text [^>]*>([^<]*)<', drawn)
    assert [text for *_, text in ticks] == names
    assert all(float(b) - float(a) > 14 for (a, *_), (b, *_) in itertools.pairwise(ticks))  # a line's height apart, aslant
    whole = float(re.search(r'viewBox="0 0 \d+ (\d+)"', drawn)[1])
    assert all(float(y) + 0.71 * 7 * len(text) < whole - 18 for _, y, text in ticks)  # above the label of the axis


def test_the_first_rounds_do_not_take_the_room_of_the_others():
    late = [0.1, *(0.9 + 0.001 * z for z in range(60))]
    curve = {"round": list(range(61)), "floats": list(range(61)), "accuracy": {"0": late}}
    row = {"name": "fedavg", "method": "fedavg", "case": "", "targets": [], "seeds": 1, "errors": {}, "axes": {}}
    results = {"rows": [row], "cases": {"": {}}, "axes": {}, "curves": {"fedavg": curve}}
    drawn = next(one for one in figures(results) if one.name == "accuracy-rounds")
    assert 0.85 < drawn.y.low < 0.91
    assert drawn.title == "Test accuracy against rounds; axis from 0.908, lower points are not shown"
    inner = xml.fromstring(svg.draw(drawn)).find("{http://www.w3.org/2000/svg}svg")
    assert float(inner.get("height")) == svg.HEIGHT - svg.BOTTOM  # what lies below is cut off
    curve["accuracy"]["0"] = [0.01 * z for z in range(61)]
    drawn = next(one for one in figures(results) if one.name == "accuracy-rounds")
    assert drawn.y.low == 0.0
    curve["accuracy"]["0"] = [0.5] + [1.0] * 60  # nothing is left to be told apart
    assert next(one for one in figures(results) if one.name == "accuracy-rounds").y.low < 1.0
    slow = row | {"name": "slow", "method": "slow"}
    lines = {"fedavg": curve, "slow": curve | {"accuracy": {"0": [0.1 + 0.8 * z / 60 for z in range(61)]}}}
    drawn = next(one for one in figures(results | {"rows": [row, slow], "curves": lines}) if one.name == "accuracy-rounds")
    assert drawn.y.low < 0.2  # the one that is slow is seen, too
    many = [row | {"name": str(z), "method": str(z)} for z in range(20)]
    results |= {"rows": many, "curves": {str(z): curve for z in range(20)}}
    assert len(next(one for one in figures(results) if one.name == "accuracy-rounds").legend) == 20


def test_names_along_an_axis_do_not_run_into_each_other():
    names = [f"a_name_that_is_long_{z}" for z in range(6)]
    drawn = svg.draw(Lines([Series("a", 0, [0, 5], [0.0, 1.0])], Axis("split", -0.3, 5.3, names=names), Axis("y")))
    ticks = [(float(x), z) for x, z in re.findall(r'class="tick" x="([^"]*)"[^>]*"middle">([^<]*)<', drawn)]
    assert all(b - a >= 6.5 * (len(y) + len(z)) / 2 for (a, y), (b, z) in itertools.pairwise(ticks))
    assert [z[-1] for _, z in ticks] == list("012345")


def test_the_areas_of_a_split_have_a_scale():
    assert "largest circle: 70 samples" in svg.draw(Bubbles([[1, 70], [0, 3]]))


def light(colour):
    """Red, green and blue light of a colour."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [z / 12.92 if z <= 0.04045 else ((z + 0.055) / 1.055) ** 2.4 for z in parts]


def luminance(colour):
    return sum(a * z for a, z in zip((0.2126, 0.7152, 0.0722), light(colour), strict=True))


def seen_without_green(colour):
    """CIELAB of what those with deuteranopia see (Vienot et al. 1999)."""
    red, green, blue = light(colour)
    yellow, blue = 0.29275 * red + 0.70725 * green, 0.02234 * (green - red) + blue
    x, y, z = 0.77 * yellow + 0.1805 * blue, 0.9278 * yellow + 0.0722 * blue, 0.1385 * yellow + 0.9505 * blue
    x, y, z = (max(share, 0.0) ** (1 / 3) for share in (x / 0.9505, y, z / 1.089))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_colours_are_told_apart_without_green():
    for one, other in itertools.combinations(figure.COLOURS, 2):
        assert math.dist(seen_without_green(one), seen_without_green(other)) > 15, (one, other)
    dark = luminance(svg.DARK["paper"])
    assert all((luminance(z) + 0.05) / (dark + 0.05) > 3 for z in figure.COLOURS)


@pytest.mark.parametrize("paper", ["#ffffff", svg.DARK["paper"]])
def test_the_circles_of_a_split_stand_out(paper):
    fill, share = re.search(r'fill="(#\w{6})" fill-opacity="([^"]*)"', svg.draw(Bubbles([[1]]))).groups()
    mixed = [float(share) * int(fill[i : i + 2], 16) + (1 - float(share)) * int(paper[i : i + 2], 16) for i in (1, 3, 5)]
    low, high = sorted(luminance(z) for z in (paper, "#" + "".join(f"{round(z):02x}" for z in mixed)))
    assert (high + 0.05) / (low + 0.05) > 3


def test_lines_of_the_same_colour_have_dashes_that_differ():
    first = [float((figure.style(number)[1] or "99").split()[0]) for number in range(16)]
    assert all(abs(a - b) >= 4 for a, b in zip(first, first[len(figure.COLOURS) :], strict=False))


def test_numbers_in_a_heat_map_can_be_read():
    drawn = svg.draw(Heat([[z / 200 for z in range(201)]], Axis("", names=["x"] * 201), Axis("", names=["y"]), (0.0, 1.0)))
    fills, inks = re.findall(r'fill="(#\w{6})"', drawn), re.findall(r"fill:(#\w+)", drawn)
    for fill, ink in zip(fills, inks, strict=True):
        low, high = sorted((luminance(fill), luminance("#ffffff" if ink == "#fff" else "#111111")))
        assert (high + 0.05) / (low + 0.05) > 4.2


def test_sixteen_methods_can_be_told_apart():
    assert len({figure.style(number) for number in range(16)}) == 16
    assert len({figure.style(number)[0] for number in range(7)}) == 7


# Trackers -------------------------------------------------------------------------------------------------------------


def test_trackers_are_told_every_round_and_imported_only_when_asked(tmp_path, monkeypatch):
    import contextlib

    rows = []

    @contextlib.contextmanager
    def pretend(place, name, config):
        rows.append((place, name, config["algorithm"]))
        yield rows.append

    monkeypatch.setitem(trackers.TRACKERS, "wandb", pretend)
    study = Study.read(TASK | {"methods": {"fedavg": {}}, "seeds": 1})
    run_branches(study, tmp_path / "x", jobs=1, progress=False, trackers={"wandb": "mine"})
    assert rows[0] == ("mine", "x-fedavg-seed0", "fedavg")
    assert [row["round"] for row in rows[1:]] == [0, 1, 2, 3]
    assert "round" not in trackers.numbers(rows[1])
    assert trackers.numbers(rows[1])["train_loss"] == rows[1]["train_loss"]


def test_a_tracker_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    with pytest.raises(ValueError, match="mlflow: its package is not installed; pip install mlflow"):
        trackers.check({"mlflow": ""})


def test_tensorboard_event_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    study = Study.read(TASK | {"methods": {"fedavg": {}}, "seeds": 1})
    run_branches(study, tmp_path / "x", jobs=1, progress=False, trackers={"tensorboard": str(tmp_path / "tb")})
    events = EventAccumulator(str(tmp_path / "tb" / "x-fedavg-seed0"))
    events.Reload()
    assert [z.step for z in events.Scalars("test_accuracy")] == [0, 1, 2, 3]


# In a browser ---------------------------------------------------------------------------------------------------------

# Clicks on a heading and a name in a legend, moves the pointer over a plot, and leaves what it saw in the title.
PROBE = """<script>
const seen = {};
const table = document.querySelector("table.summary");
const column = [...table.querySelectorAll("thead th")].findIndex(z => z.textContent === "best accuracy");
const values = () => [...table.tBodies[0].rows].map(row => +row.cells[column].dataset.value);
table.querySelectorAll("thead th")[column].querySelector("button").click();
seen.up = values();
table.querySelectorAll("thead th")[column].querySelector("button").click();
seen.down = values();
seen.sort = table.querySelectorAll("thead th")[column].getAttribute("aria-sort");
const figure = document.querySelector("figure");
seen.points = [...figure.querySelectorAll("polyline")].map(z => z.points.numberOfItems);
seen.width = figure.querySelector("svg").getBoundingClientRect().width;
seen.page = document.documentElement.scrollWidth;
seen.window = innerWidth;
figure.querySelector(".legend button").click();
seen.hidden = figure.querySelectorAll(".series.off").length;
figure.querySelector(".legend button").click();
const box = figure.querySelector("svg").getBoundingClientRect(), scale = box.width / WIDTH;
const point = figure.querySelector("polyline").points[1];
figure.querySelector(".canvas").dispatchEvent(new PointerEvent("pointermove",
  {clientX: box.left + point.x * scale, clientY: box.top + point.y * scale + 5, bubbles: true}));
const tip = figure.querySelector(".tip"), dim = () => figure.querySelectorAll(".series.dim").length;
seen.tip = tip.textContent;
seen.dim = [dim()];
const leave = kind => figure.querySelector(".canvas").dispatchEvent(new PointerEvent("pointerleave", {pointerType: kind}));
leave("touch");
seen.lifted = tip.hidden;
leave("mouse");
seen.left = tip.hidden;
seen.dim.push(dim());
figure.querySelector(".legend button").dispatchEvent(new PointerEvent("pointerenter"));
seen.dim.push(dim());
found[figure.dataset.id].series[0].name = "a name that is wider than the plot ".repeat(9);
figure.querySelector(".canvas").dispatchEvent(new PointerEvent("pointerdown",
  {clientX: box.left + point.x * scale, clientY: box.top + point.y * scale, bubbles: true}));
seen.out = [tip.getBoundingClientRect().left >= box.left - 1, tip.getBoundingClientRect().right <= box.right + 1];
seen.paper = getComputedStyle(document.body).backgroundColor;
document.title = JSON.stringify(seen);
</script>"""


def browse(page, *options):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *options, page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=80, check=True)


def told(done):
    """What a probe left in the title of the page."""
    return json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))


@chromium
@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (500, "dark")])
def test_in_a_browser(study, tmp_path, width, scheme):
    page = tmp_path / "page.html"
    page.write_text((study[0] / "report.html").read_text().replace("</body>", PROBE + "</body>"))
    dark = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    done = browse(page, f"--window-size={width},1500", dark, "--dump-dom")
    assert "CONSOLE" not in done.stderr  # neither errors nor warnings of the page
    seen = told(done)
    assert seen["up"] == sorted(seen["up"])
    assert (seen["down"], seen["sort"]) == (sorted(seen["up"], reverse=True), "descending")
    assert len(set(seen["up"])) > 1
    assert seen["points"] == [4, 4]
    assert seen["hidden"] == 1
    assert (seen["lifted"], seen["left"]) == (False, True)  # a finger leaves at once, and its tip stays
    assert seen["dim"] == [1, 0, 1]
    assert seen["out"] == [True, True]
    assert re.fullmatch(r"(fedavg|scaffold): 0\.\d+ at round \d", seen["tip"])
    assert seen["page"] <= seen["window"]  # nothing hangs out on a phone
    assert seen["width"] > 300
    assert (seen["paper"] == "rgb(255, 255, 255)") == (scheme == "light")


TOOLS = """<script>
const seen = {}, figure = document.querySelector("figure");
const line = () => figure.querySelector("polyline").getAttribute("points");
const press = kind => figure.querySelector(`[data-switch=${kind}]`).click();
const saved = [];
URL.createObjectURL = blob => { saved.push(blob); return "#"; };
const before = line();
press("log"); seen.log = line() !== before && !line().includes("NaN"); press("log"); seen.back = line() === before;
press("smooth"); seen.smooth = line() !== before && !line().includes("NaN");
seen.tics = figure.querySelectorAll(".ytics text").length; press("smooth");
for (const kind of ["[data-table=csv]", "[data-table=tex]", "[data-save=svg]"]) document.querySelector(kind).click();
let printed = "";
window.print = () => { printed = [...document.body.children].filter(z => z.offsetHeight).map(z => z.tagName).join(); };
document.querySelector("[data-save=pdf]").click();
seen.printed = printed;
seen.wide = [...document.querySelectorAll(".scroll")].map(z => z.scrollWidth - z.clientWidth);
Promise.all(saved.map(z => z.text())).then(texts => {
  seen.starts = texts.map(z => z.trim().slice(0, 6)); seen.variables = texts[2].includes("var(--");
  document.title = JSON.stringify(seen);
});
</script>"""


@chromium
@pytest.mark.slow
def test_switches_and_downloads_in_a_browser_of_1280_pixels(study, tmp_path):
    page = tmp_path / "page.html"
    page.write_text((study[0] / "report.html").read_text().replace("</body>", TOOLS + "</body>"))
    done = browse(page, "--window-size=1280,1500", "--virtual-time-budget=5000", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    seen = told(done)
    assert (seen["log"], seen["back"], seen["smooth"]) == (True, True, True)
    assert seen["tics"] > 2
    assert seen["starts"] == ["name,c", "% unli", "<svg c"]
    assert not seen["variables"]  # a file has no page that could define them
    assert seen["printed"] == "FIGURE"
    assert max(seen["wide"]) == 0  # no table is cut off


def test_methods_never_share_a_colour_and_settings_of_one_method_do():
    assert len({style(number)[0] for number in range(60)}) == 60
    assert style(3)[0] == style(3 + SETTING)[0]
    assert style(3)[1:] != style(3 + SETTING)[1:]


# On a phone (a window is never that narrow, a frame is): what hangs out, and what the names leave of the width of a table.
PHONE = """<iframe src="page.html" style="width: 390px; height: 800px; border: 0"></iframe><script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  const columns = [...page.querySelectorAll(".scroll")].map(z => z.querySelector("tbody th").offsetWidth / z.offsetWidth);
  document.title = JSON.stringify([page.documentElement.scrollWidth, ...columns]);
};
</script>"""


@chromium
@pytest.mark.slow
def test_long_names_on_a_phone(study, tmp_path):
    text = (study[0] / "report.html").read_text().replace("scaffold", "scaffold" * 12).replace("A study", "Studies" * 20)
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "phone.html").write_text(f"<title></title>{PHONE}")
    done = browse(tmp_path / "phone.html", "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    width, *columns = told(done)
    assert width <= 390
    assert max(columns) < 0.5


# Where the texts of plots begin and end, in the units of these.
TEXTS = """<iframe src="page.html" style="width: 390px; height: 800px; border: 0"></iframe><script>
onload = () => {
  const boxes = [...document.querySelector("iframe").contentDocument.querySelectorAll(".plot text")].map(z => z.getBBox());
  document.title = JSON.stringify(boxes.map(z => [z.x, z.x + z.width]));
};
</script>"""


@chromium
@pytest.mark.slow
def test_bars_and_their_names_are_in_the_picture_on_a_phone(study, tmp_path):
    names = ["fedadam-amended with more momentum", "FedAMS (WIDE)", "scaffold"]
    bars = [Bar(name, i, 100.0 + i, 9.0, f"{100 + i}.0 ± 9.0 (2 of 3 seeds)") for i, name in enumerate(names)]
    drawn = Bars(bars, "rounds to 0.9; line: one standard deviation", name="rounds", case="unlike", title="Rounds")
    (tmp_path / "page.html").write_text(page(study[1], [drawn]))
    (tmp_path / "phone.html").write_text(f"<title></title>{TEXTS}")
    ends = told(
        browse(tmp_path / "phone.html", "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    )
    assert len(ends) == 7
    assert min(low for low, _ in ends) > 0
    assert max(high for _, high in ends) < svg.WIDTH


# What is wider than its place, and so cannot be seen on paper; and headings without anything below.
ON_PAPER = """<script>
const seen = {};
seen.wide = [...document.querySelectorAll(".scroll")].map(z => z.scrollWidth - z.clientWidth);
seen.page = document.documentElement.scrollWidth - innerWidth;
const range = document.createRange();
seen.broken = [...document.querySelectorAll("dt, thead th")].filter(z => !z.textContent.includes(" ")).filter(z => {
  range.selectNodeContents(z);
  return range.getClientRects().length > 1;
}).map(z => z.textContent);
seen.headings = [...document.querySelectorAll("h2")].filter(z => z.offsetHeight).map(z => z.textContent);
document.title = JSON.stringify(seen);
</script>"""


@chromium
@pytest.mark.slow
def test_on_paper(study, tmp_path):
    page, text = tmp_path / "page.html", (study[0] / "report.html").read_text()
    page.write_text(text.replace("@media print", "@media all").replace("</body>", ON_PAPER + "</body>"))
    seen = told(
        browse(page, "--window-size=718,1000", "--hide-scrollbars", "--dump-dom")
    )  # A4 with the margins of a browser
    assert len(seen["wide"]) == 4
    assert (max(seen["wide"]), seen["page"]) == (0, 0)
    assert seen["broken"] == []  # words
    assert "Search of hyper-parameters" not in seen["headings"]  # its lists are closed
    shown = text.partition("@media print")[0]
    assert "@media screen and (prefers-color-scheme: dark)" in shown  # paper is white for everybody


# For papers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixture", ["study", "swept"])
def test_matplotlib_draws_every_figure(fixture, request):
    for described in figures(request.getfixturevalue(fixture)[1]):
        (axes,) = paper_figures.plot(described).axes
        texts = [z.get_text() for z in axes.texts]
        if isinstance(described, Lines):
            lines = {z.get_label(): z for z in axes.lines}
            for one in described.series:
                assert list(lines[one.name].get_ydata()) == pytest.approx(one.y)
                assert lines[one.name].get_color() == figure.style(one.style)[0]
            assert (axes.get_xlim(), axes.get_ylim()) == tuple((z.low, z.high) for z in (described.x, described.y))
        elif isinstance(described, Bars):
            assert [z.get_width() for z in axes.patches] == [bar.length or 0.0 for bar in described.bars]
            assert texts == [bar.text for bar in described.bars]
        elif isinstance(described, Heat):
            assert texts == [text for *_, text in described.cells()]
        else:
            assert len(axes.collections[0].get_offsets()) == sum(n > 0 for row in described.counts for n in row)


def test_bands_lost_points_rings_and_flat_lines_are_drawn_for_papers():
    one = Series("a $1$", 0, [1, 10, 100], [0.2, None, 0.4], [0.1, math.nan, 0.3], [0.3, math.nan, 0.5], marks=True)
    one.lost, one.ringed = [10], [2]
    flat = Series("b", 1, [0.0], [0.3], marks=True, flat=True, lost=[10])
    described = Lines([one, flat], Axis("lr", 1, 100, log=True), Axis("y"), [0.9], lost_at=0.0)
    (axes,) = paper_figures.plot(described).axes
    assert [z.get_text() for z in axes.texts] == ["target 0.9", "x", "x"]
    assert axes.get_xscale() == "log"
    assert len(axes.collections) == 1  # the band
    across = next(z for z in axes.lines if z.get_label() == "b")
    assert across.get_xydata().tolist() == [[1, 0.3], [100, 0.3]]


def test_formats_for_papers(swept):
    page = report(swept[0], ["pdf", "svg", "png"])
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for name in file_names(figures(swept[1])):
        for ending, start in starts.items():
            assert (page.parent / "report" / f"{name}.{ending}").read_bytes().startswith(start)
    before = {path.name: path.read_bytes() for path in (page.parent / "report").iterdir()}
    report(swept[0], ["pdf", "svg", "png"])
    assert {path.name: path.read_bytes() for path in (page.parent / "report").iterdir()} == before
    report(swept[0])  # pictures of earlier runs do not stay
    assert {path.suffix for path in (page.parent / "report").iterdir()} == {".svg", ".csv", ".tex"}
    assert "matplotlib" not in (page.parent / "report" / f"{name}.svg").read_text()


def test_pgf_needs_latex(study, monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match="formats: pgf needs LaTeX to measure texts; install one of xelatex"):
        report(study[0], ["pgf"])
    with pytest.raises(ValueError, match="formats = 'gif' is not allowed; it must be one of pdf, pgf, svg, png"):
        report(study[0], ["gif"])
    from matplotlib.backends import backend_pgf

    monkeypatch.setattr(backend_pgf.LatexManager, "_get_cached_or_new", staticmethod(lambda: backend_pgf.LatexManager))
    monkeypatch.setattr(
        backend_pgf.LatexManager, "get_width_height_descent", staticmethod(lambda text, size: (30.0, 9.0, 2.0))
    )
    for one in figures(study[1]):  # with a LaTeX that measures the same for every text
        paper_figures.save(one, tmp_path / f"{one.name}.pgf")
        assert "pgfpicture" in (tmp_path / f"{one.name}.pgf").read_text()
    assert {path.suffix for path in tmp_path.iterdir()} == {".pgf"}  # no pictures made of pixels beside it


def test_matplotlib_and_pandas_are_imported_only_when_used():
    code = "import sys, fedkeel.cli.studies, fedkeel.study.report.write; print({'matplotlib', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
