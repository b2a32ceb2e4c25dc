"""Recipes: all are valid studies at both scales, they expand as written, and their numbers are the papers'."""

import math
import re
from pathlib import Path

import pytest

from fedkeel.cli import app as cli
from fedkeel.data import load as sources
from fedkeel.models import MODELS
from fedkeel.study.recipes import read as recipe
from fedkeel.study.report import figures
from fedkeel.study.report.table_text import paper_number
from fedkeel.study.study import Study

SPECIFICATION = Path(__file__).parents[2] / "docs/methods.md"


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_is_a_study_at_both_scales(name):
    for scale in recipe.SCALES:
        study = Study.read(recipe.read(name, scale).file)
        assert study.title
        for branch in study.branches:
            assert branch.config.data in sources.names()
            assert branch.config.model in MODELS or branch.config.model.startswith("hf:")
    assert recipe.read(name).runs in recipe.names()


def test_what_the_papers_have():
    wanted = [f"lada/{z}" for z in ("tab1-train", "tab1-test", *(f"tab{i}" for i in (3, 4, 5, 6, 7, 10, 11, 12)))]
    wanted += [f"lada/fig{z}" for z in (1, 2, 3, 4, 5, 7, 8)] + ["lamb/supp-fig1", "lamb/grids"]
    wanted += [f"ppf/fig{z}" for z in range(1, 8)] + [f"pt/{z}" for z in ("tab1", "tab2", "tabC1", "fig2", "fig3", "fig4")]
    wanted += ["gradma/tab1", "gradma/tab2", *(f"gradma/fig{z}" for z in range(1, 9))]
    assert set(wanted) <= set(recipe.names())


def test_gradma_table_1_by_hand():
    file = recipe.read("gradma/tab1").file
    study = Study.read(file)
    assert (len(study.methods), len(study.cases), len(study.branches)) == (16, 14, 16 * 14)
    branch = next(b for b in study.branches if (b.case, b.method) == ("MNIST S=10 omega=0.01", "gradma-s"))
    config = branch.at({"lr": 0.1, "server_lr": 1.0, "beta1": 0.5, "beta2": 0.5}, 2, resplit=False)
    assert (config.data, config.model, config.rounds, config.cohort, config.concentration) == (
        "mnist",
        "mlp3",
        500,
        10,
        0.01,
    )
    assert (config.local_steps, config.batch_size, config.clients, config.split) == (5, 64, 100, "dirichlet_per_class")
    assert branch.grid["beta2"] == [0.1, 0.5, 0.9]
    assert branch.targets == (0.45,)
    moon = next(b for b in study.branches if (b.case, b.method) == ("CIFAR-10 S=10 omega=1", "moon"))
    assert moon.config.hyperparameters["mu"] == 5.0
    assert len(file["paper"][0]["values"]["fedavg"]) == 14


def test_tables_share_runs_and_recipes_override_cases():
    one, two = recipe.read("gradma/tab1"), recipe.read("gradma/tab2")
    assert one.runs == two.runs == "gradma/tab1"
    first, second = (Study.read(z.file) for z in (one, two))
    assert {b.slug for b in first.branches} < {b.slug for b in second.branches}  # CIFAR-100 with both concentrations
    assert {b.config.rounds for b in Study.read(recipe.read("gradma/fig8").file).branches} == {1}
    assert {b.config.cohort for b in Study.read(recipe.read("pt/fig4").file).branches} == {50}


def test_a_target_of_the_recipe_wins_over_those_of_its_cases():
    train, test = (Study.read(recipe.read(f"lada/tab1-{z}").file) for z in ("train", "test"))
    assert {(train.target_on, branch.targets) for branch in train.branches} == {("train_accuracy", (0.98,))}
    assert {branch.targets for branch in test.branches} == {(0.84,), (0.51,), (0.38,)}
    assert {b.targets for b in Study.read(recipe.read("lada/tab6").file).branches} == {(0.98,)}
    assert [b.slug for b in train.branches] == [b.slug for b in test.branches]  # two views of the same runs


def test_parameter_tracking_costs_3_and_the_share_that_tracks():
    branches = Study.read(recipe.read("pt/fig4").file).branches
    costs = {(b.method, b.axes.get("tracking")): b.cost_of({}) for b in branches}
    assert costs["local-adam", None] == 2
    for method in ("fadamet", "fadamgt"):
        assert [costs[method, z] for z in (1, 10, 50)] == pytest.approx([3.02, 3.2, 4])
    table = {b.method: b for b in Study.read(recipe.read("pt/tab1").file).branches}
    assert [table[z].cost_of({}) for z in ("fedavg", "scaffold", "fedlada", "fadamgt")] == [2, 4, 5, 3.5]
    assert [table["fadamgt"].cost_of({"tracking": z}) for z in (1, 1.0)] == [3.1, 4]  # a count, a fraction


def test_adp_fed_is_the_supplements_and_lambda_is_searched_where_the_paper_does():
    figure, resnet = (Study.read(recipe.read(f"lamb/{z}").file) for z in ("supp-fig1", "resnet"))
    for study in (figure, resnet):
        adam = next(b for b in study.branches if b.method == "fedadam").config.hyperparameters
        assert adam == {"beta2": 0.999, "tau": 0.0, "v0": 1e-8}  # m / sqrt(v), from v = eps
    assert figure.methods == resnet.methods
    assert {b.method for b in resnet.branches if "lam" in b.grid} == {"fed-lamb", "mime-lamb"}
    assert not any("lam" in b.grid for b in figure.branches)


def test_the_list_counts_the_runs_that_are_made():
    listed = recipe.listed()
    counts, trials = ({row[0]: int(row[column]) for row in listed} for column in (2, 3))
    assert counts["pt/fig4"] == 2 * (1 + 6 + 6) * 4  # LocalAdam has no Y
    assert counts["lada/fig8"] == (5 + 1) * 3  # SCAFFOLD has no alpha
    assert counts["gradma/tab1"] == 16 * 14 * 3
    assert counts["ppf/fig2"] == len(Study.read(recipe.read("ppf/fig2").file).branches) * 3
    assert trials["ppf/fig2"] == trials["lada/tab7"] == 0  # an axis is not searched
    assert trials["ppf/fig1"] == 2 * (5 + 5 + (5 + 3 - 1))  # one key after the other
    assert trials["lamb/grids"] == 2 * (9 + 12 * 10 + 10 + 10 + 9 + 9)  # all combinations


def test_gradma_figure_8_has_four_data_sets_at_three_concentrations():
    branches = Study.read(recipe.read("gradma/fig8").file).branches
    wanted = {(data, z) for data in ("mnist", "cifar10", "cifar100", "tiny-imagenet") for z in (1.0, 0.1, 0.01)}
    assert {(b.config.data, b.config.concentration) for b in branches} == wanted
    assert len(branches) == 12


def test_small_is_small():
    for name in recipe.names():
        study = Study.read(recipe.read(name, "small").file)
        assert max(branch.config.rounds for branch in study.branches) <= 60
        assert len(study.branches) <= 40


def test_small_says_that_it_is_and_keeps_the_papers_numbers():
    for name in recipe.names():
        full, small = recipe.read(name).file, recipe.read(name, "small").file
        assert "small scale" not in (full["title"] + full["about"]).lower()
        assert small["title"] == f"{full['title']} (small scale)"
        assert small["about"].startswith("Small scale (")
        assert small["about"].endswith(full["about"])
        for before, after in zip(Study.read(full).paper, Study.read(small).paper, strict=True):
            assert (before.comparable, after.comparable) == (True, False)
            assert after.where == f"{before.where} (at the paper's scale: not comparable)"
            assert all(set(row) <= set(before.values[method]) for method, row in after.values.items())
    about = recipe.read("gradma/fig8", "small").file["about"]
    assert about.startswith("Small scale (mnist, mlp, one round, one seed): shows")
    about = recipe.read("lada/tab7", "small").file["about"]
    assert about.startswith("Small scale (digits, mlp, 40 rounds, one seed, target 0.7 and 0.8): shows")


def test_small_has_several_local_steps():
    """With one step nothing drifts, so there would be nothing to see."""
    samples = len(sources.load("digits").x)
    for name in recipe.names():
        for branch in Study.read(recipe.read(name, "small").file).branches:
            run = branch.config
            epoch = math.ceil(samples / run.clients / run.batch_size)
            assert (run.local_steps or run.local_epochs * epoch) > 1, name


def test_what_small_keeps():
    resnet, splits = (Study.read(recipe.read(name, "small").file).branches for name in ("lamb/resnet", "gradma/fig8"))
    assert {(b.config.cohort, b.config.clients) for b in resnet} == {(25, 50)}
    assert {b.config.rounds for b in splits} == {1}
    intervals = Study.read(recipe.read("pt/fig2", "small").file).branches
    assert {(b.case, b.config.local_epochs) for b in intervals} == {("CIFAR-100 K=1", 1), ("CIFAR-100 K=5", 5)}


def test_grids_are_of_the_data():
    """A case's own at the paper's scale, those of digits at the small one; what is swept is not searched."""
    grids = {}
    for scale in recipe.SCALES:
        branches = Study.read(recipe.read("ppf/fig6", scale).file).branches
        grids[scale] = {b.method: b.grid["lr"] for b in branches if b.grid}
        assert not any(b.grid for b in Study.read(recipe.read("ppf/fig7", scale).file).branches)
    assert {max(z) for z in grids["paper"].values()} == {10.0, 30.0}
    assert {max(z) for z in grids["small"].values()} == {3.0}
    assert list(grids["paper"]) == list(grids["small"]) == ["fedavg", "scaffold", "scaffold-m"]


def test_curves_are_few_enough_to_be_drawn():
    """More lines of a case than that are shown as a sweep, without curves."""
    told = re.compile(r"per round|against rounds|training loss|over \d+ rounds|consistency term")
    found = 0
    for name in recipe.names():
        study = Study.read(recipe.read(name).file)
        if not study.axes or told.search(study.title):
            found += 1
            assert all(sum(b.case == case for b in study.branches) <= figures.MANY for case in study.cases), name
    assert found > 25


@pytest.mark.parametrize(("table", "number"), [("tab1", 0), ("tab2", 1)])
def test_gradma_numbers_are_those_of_the_specification(table, number):
    text = SPECIFICATION.read_text()
    block = re.findall(r"```\n(.*?)```", text[text.index("`gradma/tab1`") :], re.S)[number]
    values = recipe.read(f"gradma/{table}").file["paper"][0]["values"]
    assert len(block.strip().splitlines()) == len(values) == 16
    for line in block.strip().splitlines():
        name, *cells = re.sub(r"\(2.*", "", line).replace("|", " ").replace("\u2013", "-").split()
        assert [str(z) for z in values[name.lower()]] == cells


def test_other_numbers_are_those_of_the_specification():
    text = SPECIFICATION.read_text()
    rows = {
        line.split("|")[1].strip(): [z.strip() for z in line.split("|")[2:-1]]
        for line in text.splitlines()
        if line[:1] == "|"
    }
    tracking = recipe.read("pt/tab1").file["paper"]
    for kind, paper in (("rounds", tracking[0]), ("comm.", tracking[1])):
        for column, task in enumerate(("C10", "C100", "Tiny")):
            assert [values[column] for values in paper["values"].values()] == rows[f"{kind} {task}"]
    alphas = recipe.read("lada/tab5").file["paper"][0]["values"]["fedlada"]
    assert "29.5, 41.9, 40.1, 38.8, 36.5, 34.1" == ", ".join(map(str, alphas)) in text
    best, at = (one["values"]["fedlada"] for one in recipe.read("lada/tab4").file["paper"])
    assert f"{', '.join(map(str, best))} % at rounds {', '.join(map(str, at))}" in text
    corrections = recipe.read("lada/tab10").file["paper"][0]["values"]["scaffold-alpha"]
    assert ", ".join(f"{z:.2f}" for z in corrections) in text
    for values in recipe.read("pt/tab2").file["paper"][0]["values"].values():
        assert all(z in text for z in values)
    rounds, at = (one["values"] for one in recipe.read("lada/tab6").file["paper"])
    for name, places in rounds.items():
        assert ", ".join(f"{a}@{z}" for a, z in zip(at[name], places, strict=True)) in text
    low, high = (one["values"] for one in recipe.read("lada/tab7").file["paper"])
    for line in (
        "| FedCM | 71.5 | 286.7 | 120.5 | 200.0 | 115.9 | 245.8 |",
        "| FedLADA | 44.6 | 186.4 | 93.9 | 143.7 | 110.2 | 170.2 |",
    ):
        assert line in text
        name, *cells = [z.strip() for z in line.strip("|").split("|")]
        both = [str(z) for pair in zip(low[name.lower()], high[name.lower()], strict=True) for z in pair]
        assert both == cells


def test_numbers_of_papers_can_be_read():
    assert paper_number("98.22±0.05") == (98.22, 0.05)
    assert (paper_number(25), paper_number("-"), paper_number(">3000")) == ((25.0, 0.0), None, None)


def test_wrong_names():
    with pytest.raises(ValueError, match=r"recipe: unknown name 'gradma/tab3'; did you mean"):
        recipe.read("gradma/tab3")
    with pytest.raises(ValueError, match="scale = 'tiny' is not allowed; it must be paper or small"):
        recipe.read("gradma/tab1", "tiny")


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def fedkeel(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        return end.value.code, *capsys.readouterr()

    code, out, _ = fedkeel("reproduce", "--list")
    assert code == 0
    assert all(name in out for name in recipe.names())
    words = ["reproduce", "gradma/fig6", "--scale", "small", "--data", "digits", "--model", "logistic", "--rounds", "2"]
    words += ["--clients", "20", "--engine", "sequential"]
    code, shown, _ = fedkeel(*words, "--show")
    assert (code, 'data = "digits"' in shown, "rounds = 2" in shown) == (0, True, True)
    code, out, _ = fedkeel(*words)
    assert code == 0
    assert (tmp_path / "runs/gradma/fig6-small/report.html").exists()
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # where it is installed, it would try for half a minute
    code, _, err = fedkeel("reproduce", "gradma/tab1", "--cases", "cifar-100 s=5 omega=0.1", "--algorithms", "fedavg")
    assert (code, err.count("\n"), "cifar100" in err) == (2, 1, True)
