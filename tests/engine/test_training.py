"""What a user's own training code sees and decides: steps, callbacks, schedules, validation data, metrics, Ctrl-C."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.engine.dropped import drops_in_words
from fedkeel.engine.held_out import hold_out
from fedkeel.engine.schedule import factors

SHORT: dict[str, Any] = {"rounds": 4, "cohort": 3, "local_steps": 2, "batch_size": 8, "progress": False}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def federation(clients: int = 5, targets: str = "classes") -> fk.Federation:
    rng = np.random.default_rng(0)
    pairs = []
    for client in range(clients + 1):
        x = rng.normal(size=(20 + client, 4)).astype(np.float32)
        y: Any = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)
        if targets == "numbers":
            y = (x @ np.array([1.0, -2.0, 0.5, 0.0], dtype=np.float32))[:, None]
        pairs.append((x, y))
    return fk.Federation.from_arrays(pairs[:-1], test=pairs[-1])


def same(a: fk.Run, b: fk.Run) -> bool:
    def rows(run: fk.Run) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in run.history]

    return torch.equal(a.params, b.params) and rows(a) == rows(b)


# Steps ----------------------------------------------------------------------------------------------------------------


def my_step(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("engine", ["sequential", "processes"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsps", "gradma"])
def test_a_step_has_the_bits_of_the_loss_it_computes(name: str, engine: str) -> None:
    # A loss of one's own, because the built-in one is computed by hand-written code for dense networks.
    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, y)

    by_loss = fk.train(net, federation(), name, loss=loss, engine="sequential", **SHORT)
    by_step = fk.train(net, federation(), name, step=my_step, engine=engine, **SHORT)
    assert same(by_loss, by_step)


def test_a_step_is_checked_before_any_work() -> None:
    with pytest.raises(ValueError, match="beside loss"):
        fk.train(net, federation(), "fedavg", step=my_step, loss=functional.cross_entropy, **SHORT)
    with pytest.raises(ValueError, match="step: it fails on a batch"):
        fk.train(net, federation(), "fedavg", step=lambda model, batch: model(batch), **SHORT)
    with pytest.raises(ValueError, match="step: it returns a float"):
        fk.train(net, federation(), "fedavg", step=lambda model, batch: 1.0, **SHORT)
    with pytest.raises(ValueError, match="moon"):
        fk.train(net, federation(), "moon", step=my_step, **SHORT)


# Callbacks ------------------------------------------------------------------------------------------------------------


def test_callbacks_see_the_model_add_numbers_and_stop_the_run() -> None:
    seen = []

    def watch(row: dict[str, Any], state: Any) -> dict[str, float] | None:
        seen.append((state.model.training, torch.nn.utils.parameters_to_vector(state.model.parameters()).detach()))
        with torch.no_grad():
            next(state.model.parameters()).zero_()  # a copy: the run must not notice
        if row["round"] == 2:
            state.stop("enough")
        return {"mine": float(row["round"] * 10)}

    run = fk.train(net, federation(), "fedavg", callbacks=[watch], **SHORT)
    plain = fk.train(net, federation(), "fedavg", **SHORT | {"rounds": 3})
    assert [row["mine"] for row in run.history] == [0, 10, 20]
    assert run.stopped == "enough"
    assert torch.equal(run.params, plain.params)
    assert torch.equal(seen[-1][1], run.params)
    assert not any(training for training, _ in seen)
    with pytest.raises(ValueError, match="'round'"):
        fk.train(net, federation(), "fedavg", callbacks=[lambda row, state: {"round": 1}], **SHORT)
    with pytest.raises(ValueError, match="callbacks"):
        fk.train(net, federation(), "fedavg", callbacks=print, **SHORT)  # type: ignore[arg-type]


class Killed(Exception):
    pass


@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_a_killed_run_with_validation_schedule_and_early_stopping_stops_at_the_same_round(
    tmp_path: Path, engine: str
) -> None:
    stop = fk.EarlyStopping("val_loss", patience=2, min_delta=0.5)  # so large that nothing counts as an improvement
    options = SHORT | {"rounds": 9, "validation": 0.3, "lr_schedule": "warmup:2+cosine", "evaluate_on": "clients"}
    whole = fk.train(net, federation(), "scaffold", callbacks=[stop], **options)
    assert 2 < len(whole.history) < 9
    assert "val_loss" in whole.stopped

    def kill(row: dict[str, Any], state: Any) -> None:
        if row["round"] == 1:
            raise Killed

    with pytest.raises(Killed):
        fk.train(net, federation(), "scaffold", callbacks=[stop, kill], out=tmp_path, engine=engine, **options)
    resumed = fk.train(net, federation(), "scaffold", callbacks=[stop], out=tmp_path, resume=True, engine=engine, **options)
    assert same(whole, resumed)
    assert resumed.stopped == whole.stopped
    assert resumed.best_round == whole.best_round
    again = fk.train(net, federation(), "scaffold", out=tmp_path, resume=True, **options)  # a stopped run stays so
    assert same(whole, again)
    opened = fk.open(tmp_path)
    assert torch.equal(opened.params, whole.params)
    assert opened.best_round == whole.best_round
    for a, b in zip(opened.best.parameters(), whole.best.parameters(), strict=True):
        assert torch.equal(a, b)
    for client in range(5):
        mine, theirs = whole.clients[client], opened.clients[client]
        assert (mine is None) == (theirs is None)
        assert mine is None or all(map(torch.equal, mine, theirs))


def test_early_stopping_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="mode"):
        fk.EarlyStopping("mine")
    with pytest.raises(ValueError, match="patience"):
        fk.EarlyStopping("val_loss", patience=0)
    with pytest.raises(ValueError, match="validation="):
        fk.train(net, federation(), "fedavg", callbacks=[fk.EarlyStopping("val_loss")], **SHORT)


# Schedules ------------------------------------------------------------------------------------------------------------


def test_schedules() -> None:
    assert [factors("step:2,4", 6)(t) for t in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert [factors("warmup:4", 6)(t) for t in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    cosine = [factors("cosine", 10)(t) for t in range(10)]
    assert cosine[0] == 1
    assert cosine[5] == pytest.approx(0.5)
    assert 0 < cosine[9] < 0.03
    for wrong in ("cosin", "step", "step:a", "warmup:0", 3):
        with pytest.raises(ValueError, match="lr_schedule"):
            fk.train(net, federation(), "fedavg", lr_schedule=wrong, **SHORT)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes"])
def test_a_schedule_that_decays_has_the_bits_of_lr_decay(engine: str) -> None:
    plain = nn.Linear(4, 3)
    decay = fk.train(plain, federation(), "fedexp", lr_decay=0.5, engine=engine, **SHORT)
    scheduled = fk.train(plain, federation(), "fedexp", lr_schedule=lambda t: 0.5**t, engine=engine, **SHORT)
    assert same(decay, scheduled)
    assert not torch.equal(decay.params, fk.train(plain, federation(), "fedexp", engine=engine, **SHORT).params)
    with pytest.raises(ValueError, match="fedsps"):
        fk.train(plain, federation(), "fedsps", lr_schedule="cosine", **SHORT)


# Validation -----------------------------------------------------------------------------------------------------------


def test_held_out_samples_are_never_trained_on() -> None:
    fed = federation()
    held = hold_out(fed, 0.25, seed=3)
    assert held.training.order is not None
    assert sorted([*held.rows, *held.training.order]) == list(range(len(fed.y)))
    for client in range(len(fed)):
        first, last = fed.offsets[client], fed.offsets[client + 1]
        assert all(first <= row < last for row in held.rows_of(client))
        assert len(held.rows_of(client)) == round(0.25 * fed.size(client))
    run = fk.train(net, fed, "fedavg", validation=0.25, seed=3, **SHORT)
    changed = federation()
    changed.x[held.rows] = 1e3  # a run that trained on them would have other weights
    assert torch.equal(run.params, fk.train(net, changed, "fedavg", validation=0.25, seed=3, **SHORT).params)
    alone = fk.train(net, held.training, "fedavg", seed=3, **SHORT)
    assert torch.equal(run.params, alone.params)


def test_the_best_round_is_that_of_the_validation_data() -> None:
    models: list[nn.Module] = []
    keep = [lambda row, state: models.append(state.model)]
    run = fk.train(net, federation(), "fedavg", validation=0.3, callbacks=keep, **SHORT | {"rounds": 8})
    scores = [row["val_accuracy"] for row in run.history]
    assert run.best_round == scores.index(max(scores))
    for a, b in zip(run.best.parameters(), models[run.best_round].parameters(), strict=True):
        assert torch.equal(a, b)
    held = hold_out(federation(), 0.3, 0)
    x, y = held.training.take_rows(held.rows)
    assert float((run.best(x).argmax(1) == y).double().mean()) == pytest.approx(max(scores))


def test_evaluation_of_clients() -> None:
    with pytest.raises(ValueError, match="validation"):
        fk.train(net, federation(), "fedavg", evaluate_on="clients", **SHORT)
    run = fk.train(net, federation(), "fedavg", validation=0.3, evaluate_on="clients", **SHORT)
    held, row = hold_out(federation(), 0.3, 0), run.history[-1]
    each = []
    for client in range(5):
        x, y = held.training.take_rows(held.rows_of(client))
        each.append(float((run.model(x).argmax(1) == y).double().mean()))
    assert row["clients_accuracy"] == pytest.approx(np.mean(each))
    assert row["clients_accuracy_worst"] == pytest.approx(min(each))
    assert row["clients_accuracy_spread"] == pytest.approx(np.std(each))
    assert row["clients_loss_gain"] > 0  # a few steps on a client's data help on its other data
    plain = fk.train(net, federation(), "fedavg", validation=0.3, **SHORT)
    assert torch.equal(run.params, plain.params)


# Tasks with other targets ---------------------------------------------------------------------------------------------


def test_regression_has_a_history_of_test_and_validation_losses() -> None:
    from torchmetrics import MeanAbsoluteError, R2Score

    def bias(model: nn.Module, fed: fk.Federation) -> dict[str, float]:
        assert fed.test is not None
        assert not model.training
        return {"bias": float((model(fed.test[0]) - fed.test[1]).mean())}

    run = fk.train(
        nn.Linear(4, 1),
        federation(targets="numbers"),
        fk.algorithm("fedavg", lr=0.05),
        loss=functional.mse_loss,
        metrics=[MeanAbsoluteError(), R2Score(), bias],
        validation=0.2,
        **SHORT | {"rounds": 12},
    )
    fed = federation(targets="numbers")
    assert fed.test is not None
    error = (run.model(fed.test[0]) - fed.test[1]).detach()
    last = run.history[-1]
    assert last["test_loss"] == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert last["test_mean_absolute_error"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert last["bias"] == pytest.approx(float(error.mean()), rel=1e-4)
    assert last["val_r2_score"] > run.history[0]["val_r2_score"]
    assert last["test_accuracy"] is None
    assert run.history[-1]["val_loss"] < run.history[0]["val_loss"]
    assert "test_loss" in repr(run)


def test_multi_label_and_sequence_tasks() -> None:
    from torchmetrics.classification import MultilabelF1Score

    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 30, 6)).astype(np.float32)
    many = fk.Federation.from_arrays([(z, (z[:, :3] > 0).astype(np.float32)) for z in x])
    loss = functional.binary_cross_entropy_with_logits
    metric = MultilabelF1Score(num_labels=3)
    options = SHORT | {"rounds": 40, "cohort": 4, "local_steps": 10}
    run = fk.train(nn.Linear(6, 3), many, "fedavg", loss=loss, metrics=[metric], validation=0.2, **options)
    assert run.history[-1]["val_multilabel_f1_score"] > 0.8
    tokens = rng.integers(0, 5, size=(4, 30, 7))
    sequences = fk.Federation.from_arrays([(z, (z + 1) % 5) for z in tokens])
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
    run = fk.train(model, sequences, fk.algorithm("fedavg", lr=1.0), validation=0.2, **options)
    assert run.history[-1]["val_accuracy"] == 1.0


# Ends of runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_ctrl_c_returns_the_run_so_far(engine: str) -> None:
    def press(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    run = fk.train(net, federation(), "scaffold", engine=engine, **SHORT | {"rounds": 100, "progress": press})
    plain = fk.train(net, federation(), "scaffold", **SHORT | {"rounds": 3})
    assert run.stopped == "interrupted"
    assert same(run, plain)


def test_ctrl_c_inside_a_round_returns_the_round_before() -> None:
    calls = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return my_step(model, batch)

    run = fk.train(net, federation(), "fedavg", step=step, engine="sequential", **SHORT)
    rounds = len(run.history)
    assert 0 < rounds < 4
    assert run.stopped == "interrupted"
    plain = fk.train(net, federation(), "fedavg", step=my_step, engine="sequential", **SHORT | {"rounds": rounds})
    assert torch.equal(run.params, plain.params)


def test_dropped_answers_are_reported_in_red_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    fed = federation(4)
    for client in range(3):
        fed.x[fed.offsets[client] : fed.offsets[client + 1]] = torch.nan
    run = fk.train(net, fed, "fedavg", engine="sequential", **SHORT | {"cohort": 4, "progress": True})
    words = " ".join(capsys.readouterr().err.split())
    assert "12 of 16 answers of clients were dropped; most answers were dropped in 4 of 4 rounds" in words
    assert "12 x" in words
    assert "client 0, 1, 2" in words
    assert "12 of 16 answers" in repr(run)
    assert "color:#c00" in run._repr_html_()
    assert "12 x" in drops_in_words(run.history)
    assert drops_in_words(fk.train(net, federation(), "fedavg", **SHORT).history) == ""


def test_the_model_of_a_run_is_in_evaluation_mode() -> None:
    run = fk.train(net, federation(), "fedavg", **SHORT)
    x = federation().x
    assert not run.model.training
    assert torch.equal(run.model(x), run.model(x))


# Runs as objects ------------------------------------------------------------------------------------------------------


def test_frame_plot_and_text() -> None:
    run = fk.train(net, federation(), "fedavg", validation=0.2, **SHORT)
    assert list(run.frame["round"]) == [0, 1, 2, 3]
    assert run.frame["val_loss"].notna().all()
    figure = run.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy"]
    assert len(repr(run)) < 250
    assert "fedavg" in repr(run)
    text = run._repr_html_()
    assert "<svg" in text
    assert len(text) < 5000


@pytest.mark.parametrize("name", ["scaffold", "fedavg", "gradma"])
def test_a_run_can_be_saved_opened_and_pickled(name: str, tmp_path: Path) -> None:
    run = fk.train(net, federation(), name, validation=0.2, **SHORT)
    run.save(tmp_path / "run")
    x = federation().x
    for other in (fk.open(tmp_path / "run"), pickle.loads(pickle.dumps(run))):
        assert same(run, other)
        assert repr(other) == repr(run)
        assert other.algorithm == run.algorithm
        assert torch.equal(run.model(x), other.model(x))
        assert torch.equal(run.best(x), other.best(x))
        assert all(map(torch.equal, run.server, other.server))
        for client in range(5):
            mine, theirs = run.clients[client], other.clients[client]
            assert (mine is None) == (theirs is None)
            assert mine is None or all(map(torch.equal, mine, theirs))
    with pytest.raises(ValueError, match="already holds a run"):
        run.save(tmp_path / "run")
    with pytest.raises(ValueError, match="holds no run"):
        fk.open(tmp_path)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def test_a_model_of_an_own_class_is_passed_to_open(tmp_path: Path) -> None:
    run = fk.train(Own, federation(), "fedavg", **SHORT | {"rounds": 1})
    run.save(tmp_path / "run")
    with pytest.raises(ValueError, match="pass model="):
        fk.open(tmp_path / "run")
    x = federation().x
    assert torch.equal(fk.open(tmp_path / "run", model=Own).model(x), run.model(x))


def test_fewer_clients_than_the_default_cohort_all_take_part() -> None:
    fed = fk.load("digits").split("iid", clients=5)
    run = fk.train(fk.model("mlp", fed), fed, "fedavg", rounds=1, progress=False)
    assert run.history[0]["clients"] == 5
    with pytest.raises(ValueError, match="cohort = 10"):
        fk.train(fk.model("mlp", fed), fed, "fedavg", rounds=1, cohort=10, progress=False)


def test_ctrl_c_after_the_server_step_goes_back_to_the_last_complete_round() -> None:
    """The model of the partial run belongs to the last row of its history, also if an evaluation is interrupted."""
    fed = fk.load("digits").split("iid", clients=10)
    calls = []

    def interrupts(model: Any, fed: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"calls": len(calls)}

    settings = {"progress": False, "engine": "sequential"}
    model = fk.model("mlp", fed)
    partial = fk.train(model, fed, "fedavg", rounds=5, metrics=[interrupts], **settings)
    whole = fk.train(model, fed, "fedavg", rounds=2, **settings)
    assert len(partial.history) == 2
    assert torch.equal(partial.params, whole.params)
