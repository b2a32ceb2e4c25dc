"""`fedkeel bench`: the page from raw rows, the protocol of the contestants, and errors. No test depends on timing."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import fedkeel as fk
import fedkeel.cli.bench
from fedkeel.cli import app as cli

pytestmark = pytest.mark.skipif(not (fedkeel.cli.bench.FOLDER / "run.py").exists(), reason="needs the repository")


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the benchmarks."""
    monkeypatch.setattr(sys, "path", [str(fedkeel.cli.bench.FOLDER), *sys.path])
    return importlib.import_module


def rows(section, **passes):
    """Rows as `contest` yields them: who = seconds of a round in every pass."""
    return [
        {"section": section, "who": who, "pass": number, "seconds": [z, 9 * z, z]}
        for who, times in passes.items()
        for number, z in enumerate(times)
    ]


def line_of(text, start):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_ratios_are_taken_within_a_pass(module):
    found = rows("a", fedkeel=[1, 10, 2], flwr=[6, 40, 14], pfl=[2, 30, 8], spread=[1, 8, 1], batched=[2, 20, 4])
    text = module("table").contest_section("a", found)
    assert line_of(text, "Flower") == ["6.00", "4.00", "7.00", ">= 5", "met"]
    assert line_of(text, "the fastest peer (pfl-research")[0] == "3.00"
    assert line_of(text, "fedkeel (auto) / bare") == ["1.25", "1.00", "2.00", "<= 1.20", "**missed**"]
    assert line_of(text, "fedkeel (auto) / batched")[3] == ""  # the target is for the better of the two


def test_a_peer_that_cannot_run_is_named(module):
    missing = {"section": "b", "who": "fedjax", "missing": "pip failed: no release"}
    text = module("table").contest_section("b", [*rows("b", fedkeel=[1.0], plain=[9.0]), missing])
    assert line_of(text, "a plain PyTorch loop")[3:] == [">= 10", "**missed**"]
    assert "FedJAX 0.0.17 is not in the table: pip failed: no release" in text


def test_a_pass_counts_only_if_both_contestants_finished_it(module):
    text = module("table").contest_section("c", rows("c", fedkeel=[1.0, 1.0], plain=[2.0]))
    assert line_of(text, "a plain PyTorch loop")[:3] == ["2.00", "2.00", "2.00"]
    assert "spread" not in text


@pytest.mark.parametrize(
    ("name", "gradients"),
    # PAdaMFed-VR looks at two points; MOON has two forward passes more, each a third; mime-lamb one over all 600 samples of
    # a client beside the 320 of its steps.
    [("fedavg", 1), ("padamfed-vr", 2), ("moon", 1 + 2 / 3), ("mime-lamb", 1 + 600 / 320)],
)
def test_gradients_are_counted(module, monkeypatch, name, gradients):
    methods = module("methods")
    monkeypatch.setattr(methods, "COHORTS", [[0, 1], [2, 3]])
    fed = fk.Federation(torch.randn(4 * 600, 1, 28, 28), torch.randint(0, 10, (4 * 600,)), np.arange(5) * 600)
    assert methods.gradients(fed, name) * 10 / 2 == pytest.approx(
        gradients
    )  # It expects ten clients, and this round has two.


def test_methods_are_divided_by_their_gradients(module):
    row = {"section": "g", "who": "gradma", "pass": 0, "gradients": 3.0, "seconds": [4.5], "fedavg": [1.0]}
    assert line_of(module("methods").section([row]), "gradma: 4.50 x fedavg, 3 gradients")[0] == "1.50"


def test_growth_per_unit(module):
    found = [
        {
            "section": "h",
            "who": "d fedavg",
            "what": "d",
            "point": d,
            "pass": 0,
            "seconds": [s],
            "memory": d,
            "uploads": 4 * d,
        }
        for d, s in ((10_000_000, 1.0), (100_000_000, 15.0))
    ]
    text = module("growth").section(found)
    assert line_of(text, "a server step, per parameter: fedavg")[0] == "1.50"
    assert line_of(text, "fedavg, d = 100,000,000") == ["0.25 x the uploads", "0.25 x the uploads"]


def test_registered_clients_are_judged_by_cpu_time(module):
    found = [
        {"section": "h", "who": "N scaffold", "what": "N", "point": N, "pass": 0, "seconds": [s], "cpu": [c], "memory": 1}
        for N, s, c in ((1_000, 1.0, 1.0), (1_000_000, 9.0, 1.1))
    ]
    text = module("growth").section(found)
    assert line_of(text, "CPU time of a round: scaffold, N = 1,000,000 / N = 1,000 ") == ["1.10"] * 3 + ["<= 1.2", "met"]
    assert line_of(text, "a round: scaffold, N = 1,000,000 / N = 1,000 ") == ["9.00"] * 3 + ["", ""]


def test_memory_is_counted_in_uploads(module):
    row = {"section": "i", "who": "fedavg processes 7", "pass": 0, "d": 25, "fields": 2, "records": 500}
    found = [row | {"S": S, "memory": memory} for S, memory in ((10, 1_500), (1_000, 1_700))]
    text = module("memory").section([*found, row | {"S": 100, "missing": "no memory"}])
    assert line_of(text, "fedavg, processes, d = 25") == ["5.0", "", "6.0", "1000"]
    assert "- fedavg processes 7, S = 100: no memory" in text


def test_a_run_in_its_own_process_says_its_memory():
    command = [sys.executable, str(fedkeel.cli.bench.FOLDER / "memory.py"), "scaffold", "sequential", "8", "5"]
    row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    d = 784 * 8 + 8 + 8 * 10 + 10
    assert (row["d"], row["fields"], row["records"]) == (d, 2, 2 * 5 * 4 * d)
    assert row["memory"] >= 0


def test_a_new_section_keeps_the_rows_of_other_sections(module, monkeypatch, tmp_path):
    run = module("run")
    monkeypatch.setattr(run, "ROWS", tmp_path / "bench.jsonl")
    monkeypatch.setattr(run, "PAGE", tmp_path / "bench.md")
    run.write(rows("b", fedkeel=[1.0], plain=[5.0]) + rows("a", fedkeel=[1.0], plain=[2.0]))
    monkeypatch.setattr(run, "rows_of", lambda *_: iter(rows("a", fedkeel=[1.0], plain=[3.0])))
    run.bench("a", 1, False)
    kept = [(row["section"], row["who"], row["seconds"][0]) for row in run.read(tmp_path / "bench.jsonl")]
    assert kept == [("a", "fedkeel", 1.0), ("a", "plain", 3.0), ("b", "fedkeel", 1.0), ("b", "plain", 5.0)]
    page = (tmp_path / "bench.md").read_text()
    assert page.index("## (a)") < page.index("## (b)")


def test_the_clock_answers_each_line_with_that_many_rounds():
    script = "import clock; c = clock.Clock(2); c.tell(threads=1)\nwhile True: print('noise'); c.tick()"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        input="3\n2\n",
        capture_output=True,
        text=True,
        cwd=fedkeel.cli.bench.FOLDER,
        check=True,
    )
    ready, first, second = map(json.loads, ended.stdout.splitlines())
    assert ready == {"ready": True, "threads": 1}
    assert (len(first["seconds"]), len(second["seconds"])) == (3, 2)


def refused(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", *words])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_errors_are_one_line(capsys, monkeypatch, tmp_path):
    assert refused(capsys, "--only", "a,z").startswith("error: only: there is no section 'z'; known: a, b")
    monkeypatch.setattr("fedkeel.cli.bench.FOLDER", tmp_path)
    assert "clone the repository" in refused(capsys)
