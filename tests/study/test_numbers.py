"""The numbers of runs, and their means over seeds."""

import math

import pytest

from fedkeel.study.report.table_text import in_paper_units
from fedkeel.study.results.numbers import Outcome, curves, moments, of_run, robust_width, summarise

TASK = {"clients": 10, "rounds": 3, "cohort": 3, "local_steps": 2, "model": "logistic", "engine": "sequential"}
COLUMNS = 120  # of the screen


def test_numbers_of_a_run_by_hand():
    rows = [(0.1, 0.5), (0.6, 0.7), (None, 0.9), (0.8, 0.95)]
    history = [
        {
            "round": t,
            "test_accuracy": a,
            "train_accuracy": b,
            "train_loss": 1 / (t + 1),
            "up": 10,
            "down": 30,
            "seconds": 1.0,
            "dropped": 0,
        }
        for t, (a, b) in enumerate(rows)
    ]
    history[0] |= {"warmup_up": 5, "warmup_down": 7}
    found = of_run(Outcome("m", 0, history, memory_mb=12.0), [0.6, 0.8, 0.99], cost=3.5)
    assert (found["final_accuracy"], found["best_accuracy"], found["rounds_to_best"]) == (0.8, 0.8, 4)
    assert found["last10_accuracy"] == pytest.approx(0.5)
    assert (found["rounds_to_target"], found["rounds_to_second"]) == (2, 4)
    assert (found["floats_to_target"], found["up_to_target"], found["cost_to_second"]) == (92, 25, 14.0)
    assert "rounds_to_third" not in found
    assert (found["final_train_loss"], found["final_train_accuracy"], found["memory_mb"]) == (0.25, 0.95, 12.0)
    assert not any(key.startswith("at_") for key in found)
    found = of_run(Outcome("m", 0, history), [0.7, 0.9], on="train_accuracy")
    assert (found["rounds_to_target"], found["rounds_to_second"]) == (2, 3)
    assert (found["at_target_accuracy"], "at_second_accuracy" in found) == (0.6, False)  # not evaluated there
    early = [history[0] | {"test_accuracy": 0.3}] * 7  # of 11 rounds, the first is not among the last ten
    assert of_run(Outcome("m", 0, early + history), [])["last10_accuracy"] == pytest.approx((6 * 0.3 + 0.1 + 0.6 + 0.8) / 9)


def test_a_run_that_diverged_leaves_the_others_their_numbers():
    runs = [{"a": 1.0, "b": math.inf, "c": math.inf}, {"a": 3.0, "b": 1.0, "c": -math.inf}]
    assert moments("a", runs) == {"a": 2.0, "a_std": pytest.approx(2**0.5)}
    assert moments("b", runs) == {"b": math.inf, "b_std": None}
    assert math.isnan(moments("c", runs)["c"])
    rows = [{"test_accuracy": 0.5, "train_loss": z, "up": 1, "down": 1} for z in (1.0, math.nan, math.inf)]
    assert curves([Outcome("m", 0, rows)])["train_loss"] == {"0": [1.0, None, None]}


def test_seeds_that_miss_a_target_are_left_out_and_counted():
    def run(seed, *accuracies):
        rows = [{"test_accuracy": z, "up": 1, "down": 2, "seconds": 1.0, "dropped": 0} for z in accuracies]
        return Outcome("m", seed, rows)

    row = summarise("m", [run(0, 0.1, 0.6, 0.6), run(1, 0.1, 0.2, 0.3), run(2, 0.1, 0.2, 0.6)], [0.5, 0.9], 3, cost=2.0)
    assert (row["reached_target"], row["rounds_to_target"], row["rounds_to_target_std"]) == (2, None, None)
    assert (row["reached_rounds_to_target"], row["reached_rounds_to_target_std"]) == (2.5, pytest.approx(0.5**0.5))
    assert (row["reached_floats_to_target"], row["reached_cost_to_target"]) == (7.5, 5.0)
    assert (row["reached_second"], row["reached_rounds_to_second"]) == (0, None)
    assert in_paper_units(row, "rounds_to_target") == ">3 (2/3)"


def test_width_of_the_robust_interval():
    points = [(1.0, 0.1), (0.001, 0.5), (0.01, 0.96), (0.1, 1.0)]
    assert robust_width(points) == (pytest.approx(1.0), False)
    assert robust_width(points, share=0.5) == (pytest.approx(2.0), True)  # perhaps wider: the values end there
    assert robust_width([(1e-3, 0.99), (1e-2, 0.2), (1e-1, 1.0)]) == (0, True)  # not across a gap


def test_what_was_spent_without_reaching_the_target():
    row = {"seeds": 4, "rounds": 3000, "cost": 6000.0, "reached_target": 0, "rounds_to_target": None, "cost_to_target": None}
    row["errors"] = {}
    assert [in_paper_units(row, f"{kind}_to_target") for kind in ("rounds", "cost")] == [">3000", ">6000"]
    assert in_paper_units(row | {"reached_target": 3}, "cost_to_target") == ">6000 (3/4)"


def test_tables_have_bytes_to_the_target_where_they_differ_from_floats() -> None:
    from fedkeel.study.report.table_text import screen_row, table_rows

    def row(size):
        history = [
            {"round": t, "up": 10.0, "down": 10, "up_bytes": size, "down_bytes": 40, "test_accuracy": 0.5 * t}
            | {"train_loss": 1.0, "dropped": 0, "seconds": 0.1}
            for t in range(3)
        ]
        history[0] |= {"warmup_up": 1, "warmup_down": 2, "warmup_up_bytes": 4, "warmup_down_bytes": 8}
        made = summarise("fedavg", [Outcome("fedavg", 0, history)], [0.5], 3)
        return made | {"targets": [0.5], "chosen": {}, "case": "", "axes": {}}

    packed, plain = row(5.0), row(40.0)
    assert (packed["bytes"], packed["bytes_to_target"]) == (3 * 45 + 12, 2 * 45 + 12)
    assert screen_row(packed, [0.5])["bytes to 0.5"] == "102"
    assert "bytes to 0.5" not in screen_row(plain, [0.5])
    assert table_rows([plain, packed])[0]["bytes to 0.5"][1] == 2 * 80 + 12
