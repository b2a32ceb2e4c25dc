"""Who takes part in a round, and what is written down about it."""

from __future__ import annotations

import csv
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedkeel as fk
from fedkeel.core import spelling
from fedkeel.engine.participation import KINDS, Schedule, as_text, from_text, proportional
from fedkeel.engine.settings import Settings
from tests.golden import tasks as golden
from tests.tasks import digits_fed, full_only, same_record, small_net

FED = digits_fed(clients=12)
SMALL = {"rounds": 6, "cohort": 4, "local_steps": 2, "batch_size": 20, "engine": "sequential", "progress": False}


def train(name: str = "scaffold", **kw: Any) -> fk.Run:
    return fk.train(small_net(), FED, name, **(SMALL | kw))


def schedule(text: str, S: int = 4, seed: int = 0, fed: fk.Federation = FED) -> Schedule:
    return Schedule(from_text(text), seed, S, fed)


def same(a: fk.Run, b: fk.Run) -> None:
    assert torch.equal(a.params, b.params)
    assert same_record(a.server, b.server)
    assert all(same_record(a.clients[i], b.clients[i]) for i in range(len(a.clients)))
    assert str([{**row, "seconds": 0} for row in a.history]) == str([{**row, "seconds": 0} for row in b.history])


# Laws -----------------------------------------------------------------------------------------------------------------

NEUTRAL = ("uniform", "cyclic:groups=1", "markov:on=1,off=0", "by_label:least=1,most=1")


@pytest.mark.parametrize(("number", "name"), list(enumerate(fk.algorithms())))
def test_neutral_participation_leaves_the_bits_of_every_method(number: int, name: str) -> None:
    cohort = golden.CLIENTS if full_only(name) else golden.COHORT
    settings = golden.COMMON | golden.SETTINGS["dense"] | {"cohort": cohort, "dtype": torch.float32}
    run = fk.train(golden.dense, golden.clients(), name, participation=NEUTRAL[number % len(NEUTRAL)], **settings)
    assert golden.digests(run) == golden.digests(golden.finished_run(name, "dense", torch.float32))


VARYING = ("bernoulli:p=0.15", "weighted:correct=true", "cyclic:groups=5", "markov:on=0.2,off=0.5", "by_label:most=0.5")


@pytest.mark.parametrize("text", VARYING)
def test_engines_and_resumed_runs_agree(text: str, tmp_path: Path) -> None:
    run = train(participation=text, seed=3)
    same(run, train(participation=text, seed=3, engine="processes", workers=2))
    train(participation=text, seed=3, rounds=3, out=tmp_path)
    same(run, train(participation=text, seed=3, out=tmp_path, resume=True))


def test_methods_with_memory_stand_rounds_of_any_size() -> None:
    for name in ("gradma", "mifa", "padamfed", "fedau", "mime", "fadamgt"):
        run = train(name, participation="bernoulli:p=0.12", seed=3)
        assert len({row["clients"] for row in run.history}) > 1
        assert run.params.isfinite().all()


def test_a_round_without_clients_changes_nothing(tmp_path: Path) -> None:
    trace = written(tmp_path, [(2, 0, 1), (3, 4, 5)])
    run = train(participation=f"trace:file={trace}", rounds=4)
    assert [row["came"] for row in run.history] == [[2], [], [], []]
    assert torch.equal(run.params, train(cohort=[[2]], rounds=1).params)
    empty = run.history[1]
    assert (empty["clients"], empty["up"], empty["down"], empty["dropped"]) == (0, 0, 0, 0)
    assert math.isnan(empty["train_loss"])
    assert empty["test_accuracy"] == run.history[0]["test_accuracy"]


# Kinds ----------------------------------------------------------------------------------------------------------------


def often(one: Schedule, rounds: int) -> np.ndarray:
    """[N] how often each client came in this number of rounds."""
    return np.bincount([i for t in range(rounds) for i in one.participants(t)], minlength=one.N)


def test_bernoulli_clients_come_independently() -> None:
    one = schedule("bernoulli:p=0.3")
    came = np.array([np.isin(np.arange(12), one.participants(t)) for t in range(2000)])
    assert all(stats.binomtest(int(n), 2000, 0.3).pvalue > 1e-4 for n in came.sum(0))
    assert stats.binomtest(int((came[:, 0] & came[:, 1]).sum()), 2000, 0.09).pvalue > 1e-4
    expected = schedule("bernoulli")  # of 4 in 12
    assert stats.binomtest(int(often(expected, 2000).sum()), 24_000, 1 / 3).pvalue > 1e-4


def test_weighted_has_its_probabilities_and_its_correction_is_unbiased() -> None:
    one = schedule("weighted:correct=true")
    inclusion = proportional(FED.sizes, 4)
    assert inclusion.sum() == pytest.approx(4)
    assert inclusion.max() <= 1
    came = often(one, 4000)
    assert all(stats.binomtest(int(n), 4000, float(p)).pvalue > 1e-4 for n, p in zip(came, inclusion, strict=True) if p < 1)
    assert {len(one.participants(t)) for t in range(100)} == {4}
    values = FED.sizes + np.arange(12.0)
    sums = [(values[ids] / 12 / inclusion[ids]).sum() for ids in map(one.participants, range(4000))]
    assert stats.ttest_1samp(sums, values.mean()).pvalue > 1e-4
    plain = [values[ids].mean() for ids in map(one.participants, range(4000))]
    assert stats.ttest_1samp(plain, values.mean()).pvalue < 1e-4, "without the correction it should be biased"


def test_large_clients_always_come() -> None:
    assert proportional(np.array([100, 1, 1, 1, 1]), 2).tolist() == [1, 0.25, 0.25, 0.25, 0.25]
    assert proportional(np.array([3, 1]), 5).tolist() == [1, 1]


def test_the_correction_reaches_the_weights_of_a_round() -> None:
    """With one local step of one batch with all data, FedAvg's step is a weighted sum of the clients' gradients."""
    settings = {"rounds": 1, "local_steps": 1, "batch_size": "all", "cohort": 4}
    inclusion = proportional(FED.sizes, 4)
    ids = schedule("weighted").participants(0)
    run = train("fedavg", participation="weighted:correct=true", **settings)
    alone = [train("fedavg", **(settings | {"cohort": [[i]]})).params for i in ids]
    start = torch.cat([p.detach().flatten() for p in _initial().parameters()])
    expected = start + sum((z - start) / 12 / inclusion[i] for z, i in zip(alone, ids, strict=True))
    np.testing.assert_allclose(run.params, expected, rtol=1e-4, atol=1e-6)


def _initial() -> torch.nn.Module:
    from fedkeel.engine.objective import seeded

    return seeded(small_net(), 0)


def test_cyclic_groups_take_turns() -> None:
    one = schedule("cyclic:groups=3", S=12)
    assert [one.participants(t) for t in range(4)] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11], [0, 3, 6, 9]]
    assert len(schedule("cyclic:groups=3", S=2).participants(0)) == 2


def test_markov_has_its_transitions_and_is_a_function_of_the_round() -> None:
    one = schedule("markov:on=0.2,off=0.1", S=12)
    there = np.array([np.isin(np.arange(12), one.participants(t)) for t in range(2000)])
    came, went = there[1:][~there[:-1]], ~there[1:][there[:-1]]
    assert stats.binomtest(int(came.sum()), len(came), 0.2).pvalue > 1e-4
    assert stats.binomtest(int(went.sum()), len(went), 0.1).pvalue > 1e-4
    first = [schedule("markov:on=0.2,off=0.1", S=12, seed=seed).participants(0) for seed in range(500)]
    assert stats.binomtest(sum(map(len, first)), 6000, 2 / 3).pvalue > 1e-4, "it starts as it goes on"
    fresh = schedule("markov:on=0.2,off=0.1", S=12)
    assert [fresh.participants(t) for t in (900, 3, 900)] == [one.participants(t) for t in (900, 3, 900)]


def test_by_label_follows_the_labels() -> None:
    x = np.zeros((4, 3), np.float32)
    fed = fk.Federation.from_arrays([(x, np.full(4, 0)), (x, np.full(4, 2)), (x, np.array([0, 0, 2, 2]))])
    came = often(schedule("by_label:least=0.2,most=0.6", S=3, fed=fed), 2000)
    assert all(stats.binomtest(int(n), 2000, p).pvalue > 1e-4 for n, p in zip(came, (0.2, 0.6, 0.4), strict=True))


def written(folder: Path, lines: list[tuple[Any, Any, Any]], head: tuple[str, ...] = ("client", "from", "to")) -> Path:
    with open(folder / "visits.csv", "w", newline="") as file:
        csv.writer(file).writerows([head, *lines])
    return folder / "visits.csv"


def test_a_trace_is_followed_and_begins_again(tmp_path: Path) -> None:
    one = schedule(f"trace:file={written(tmp_path, [(5, 0, 2), (7, 1, 3), (5, 3, 4)])}")
    assert [one.participants(t) for t in range(6)] == [[5], [5, 7], [7], [5], [5], [5, 7]]
    assert one.participants(0, time=1.5) == [5, 7]


def test_a_changed_trace_cannot_be_resumed(tmp_path: Path) -> None:
    text = f"trace:file={written(tmp_path, [(5, 0, 2), (7, 1, 3)])}"
    train(participation=text, rounds=2, out=tmp_path / "run")
    written(tmp_path, [(5, 0, 2), (8, 1, 3)])
    with pytest.raises(ValueError, match="participation"):
        train(participation=text, out=tmp_path / "run", resume=True)


# What is written down -------------------------------------------------------------------------------------------------


def test_attendance_counts_who_came() -> None:
    run = train(participation="cyclic:groups=4", rounds=6, cohort=1.0)
    frame = run.attendance
    assert frame["rounds"].tolist() == [2, 2, 1, 1] * 3
    assert frame["last"].tolist() == [4, 5, 2, 3] * 3
    assert frame["age"].tolist() == [1, 0, 3, 2] * 3
    last = run.history[-1]
    assert (last["coverage"], last["record_age"], last["oldest_record"]) == (1.0, 1.5, 3)
    assert [row["coverage"] for row in run.history[:3]] == [0.25, 0.5, 0.75]
    with pytest.raises(ValueError, match="participation='uniform'"):
        _ = train(rounds=1).attendance


# Settings -------------------------------------------------------------------------------------------------------------


def test_an_object_and_its_text_are_the_same() -> None:
    made = fk.participation("markov", on=0.2, off=0.1)
    assert Settings(participation=made).participation == as_text(" markov:off=0.1, on=0.2 ") == "markov:on=0.2,off=0.1"
    same(train(participation=made), train(participation="markov:on=0.2,off=0.1"))
    for kind in ("uniform", "bernoulli:p=0.5", "weighted:correct=True", "by_label:least=0.3"):
        assert spelling.spell(KINDS, from_text(kind)) == kind


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("markow:on=0.2,off=0.1", "unknown name 'markow'; did you mean markov"),
        ("markov:on=0.2", "option off is missing; it must be >= 0 and <= 1"),
        ("markov:on=2,off=0.1", "markov: on = 2 is not allowed; it must be > 0 and <= 1"),
        ("markov:up=2,off=0.1", "unknown option 'up'"),
        ("markov:0.2", "written as markov:option=value"),
        ("uniform:p=1", "it has no options"),
        ("cyclic:groups=0", "a whole number >= 1"),
        (3, "participation = 3 is not allowed; it must be a text"),
    ],
)
def test_wrong_values_are_refused(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(participation=value)


def test_what_does_not_fit_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="beside a list of clients"):
        train(participation="uniform", cohort=[[0]] * 6)
    with pytest.raises(ValueError, match="cannot be read"):
        fk.participation("trace", file=str(tmp_path / "none.csv"))
    with pytest.raises(ValueError, match="has client 12; clients are numbered from 0 to 11"):
        train(participation=f"trace:file={written(tmp_path, [(12, 0, 2)])}")
    for lines, head in (([(1, 2, 2)], ("client", "from", "to")), ([(1, 2, 3)], ("client", "from", "until"))):
        with pytest.raises(ValueError, match="line 2"):
            fk.participation("trace", file=str(written(tmp_path, lines, head)))
    fed = fk.Federation.from_arrays([(np.zeros((2, 3)), np.zeros((2, 1)))])
    with pytest.raises(ValueError, match="one class number per sample"):
        fk.train(
            torch.nn.Linear(3, 1), fed, "fedavg", participation="by_label", cohort=1, loss=torch.nn.MSELoss(), progress=False
        )
    with pytest.raises(ValueError, match="the server does not know their labels"):
        Settings(participation="by_label").check_with(fk.algorithm("fedavg"), 20, remote=True)
    name = next(name for name in fk.algorithms() if full_only(name))
    with pytest.raises(ValueError, match="allow_partial"):
        train(name, participation="markov:on=0.2,off=0.1", cohort=1.0)


def test_traces_of_fedscale_are_read_and_other_pickles_are_not_run(tmp_path: Path) -> None:
    """The form of client_behave_trace in FedScale's repository: benchmark/dataset/data/device_info/README.md."""
    trace = {
        1: {"duration": 4, "inactive": [3, 9], "finish_time": 10, "active": [1, 6], "model": "A"},
        2: {"duration": 5, "inactive": [5], "finish_time": 10, "active": [0], "model": "B"},
    }
    path = tmp_path / "client_behave_trace"
    path.write_bytes(pickle.dumps(trace))
    kind = fk.participation("trace", file=str(path))
    there = [Schedule(kind, 0, 2, FED).participants(t) for t in range(9)]
    assert there == [[1], [0, 1], [0, 1], [1], [1], [], [0], [0], [0]]
    path.write_bytes(pickle.dumps({1: Path("x")}))
    with pytest.raises(ValueError, match="neither a number nor a text"):
        fk.participation("trace", file=str(path))
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ValueError, match="no trace in FedScale's form"):
        fk.participation("trace", file=str(path))
