"""Measurements against their definitions, computed by hand with numpy on a small problem."""

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.engine import seeding, settings
from fedkeel.engine.metrics import METRICS, check_defined
from fedkeel.engine.objective import make_flat

N, D, CLASSES = 5, 4, 3
DECAY = 0.03


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=(6 + i, D)), rng.integers(0, CLASSES, 6 + i)) for i in range(N)]
    return clients, fk.Federation.from_arrays(clients, test=clients[0])


def model():
    return nn.Linear(D, CLASSES).double()


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def loss_and_gradient(params, x, y):
    """Of logistic regression, with weight decay."""
    weight, bias = params[: CLASSES * D].reshape(CLASSES, D), params[CLASSES * D :]
    p = softmax(x @ weight.T + bias)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    error = (p - np.eye(CLASSES)[y]) / len(y)
    gradient = np.concatenate([(error.T @ x).ravel(), error.sum(0)]) + DECAY * params
    return loss, gradient, p


def train(task, algorithm, metrics, rounds=3, **more):
    options = {"cohort": 3, "local_steps": 2, "batch_size": 4, "weight_decay": DECAY, "engine": "sequential", "seed": 1}
    return fk.train(model, task[1], algorithm, rounds=rounds, metrics=metrics, progress=False, **(options | more))


def test_loss_and_accuracy_on_all_training_data(task):
    run = train(task, "fedavg", ["train"])
    x, y = (np.concatenate(z) for z in zip(*task[0], strict=True))
    params = run.params.numpy()
    loss, _, p = loss_and_gradient(params, x, y)
    row = run.history[-1]
    assert row["train_set_loss"] == pytest.approx(loss, rel=1e-9)
    assert row["objective"] == pytest.approx(loss + DECAY / 2 * (params**2).sum(), rel=1e-9)
    assert row["train_accuracy"] == pytest.approx((p.argmax(1) == y).mean())


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_gradient_norm(task, weights):
    run = train(task, "fedavg", ["gradient_norm"], weights=weights)
    sizes = np.array([len(y) for _, y in task[0]])
    share = sizes / sizes.sum() if weights == "samples" else np.full(N, 1 / N)
    gradients = [loss_and_gradient(run.params.numpy(), x, y)[1] for x, y in task[0]]
    assert run.history[-1]["gradient_norm"] == pytest.approx(np.linalg.norm(share @ gradients), rel=1e-9)


def test_tracking_error(task):
    run = train(task, "scaffold", ["tracking"])
    own = [np.zeros(len(run.params)) if run.clients[i] is None else run.clients[i].c.numpy() for i in range(N)]
    gradients = [loss_and_gradient(run.params.numpy(), x, y)[1] for x, y in task[0]]
    error = np.mean([((c - g) ** 2).sum() for c, g in zip(own, gradients, strict=True)])
    assert run.history[-1]["tracking_error"] == pytest.approx(error, rel=1e-9)
    assert run.history[-1]["tracking_bias"] == pytest.approx(0, abs=1e-12)  # c is the mean of the c_i


def test_the_dual_of_fedpd_tracks_the_opposite_of_the_gradient(task):
    run = train(task, fk.algorithm("fedpd", lr=0.1), ["tracking"], rounds=150, cohort=N, local_steps=20, batch_size=None)
    assert run.history[-1]["tracking_error"] < 1e-3 * run.history[0]["tracking_error"]


def test_consistency_and_drift(task):
    """With server_lr = 1, x' is the mean of the local models. Runs of one client from the same x give these models."""
    run = train(task, "fedavg", ["consistency", "drift"], rounds=1)
    start = make_flat(model, 1, "cpu", None).vector().numpy()
    cohort = seeding.sample(1, 0, N, 3)
    local = np.array([train(task, "fedavg", [], rounds=1, cohort=[[i]]).params.numpy() for i in cohort])
    after = local.mean(0)
    np.testing.assert_allclose(run.params.numpy(), after, rtol=1e-9)
    row, dx = run.history[0], local - start
    assert row["consistency"] == pytest.approx(((local - after) ** 2).sum(1).mean(), rel=1e-9)
    assert row["drift"] == pytest.approx((dx**2).sum(1).mean(), rel=1e-9)
    mean = dx.mean(0)
    cosines = dx @ mean / np.linalg.norm(dx, axis=1) / np.linalg.norm(mean)
    assert row["cosine"] == pytest.approx(cosines.mean(), rel=1e-9)


def test_quadratic_program(task):
    """Two rounds of two clients, with a memory of four clients: so the test knows all inputs of the projection."""
    cohorts = [[0, 1], [2, 3]]
    algorithm = fk.algorithm("gradma-s", lr=0.5, beta1=0.5, beta2=0.5, memory=4)
    one, two = (train(task, algorithm, ["qp"], rounds=t, cohort=cohorts) for t in (1, 2))
    D_ = two.server.D.numpy()
    unit = D_ / np.linalg.norm(D_, axis=1, keepdims=True)
    before = 0.5 * one.server.m.numpy() + D_[2:].mean(0)  # the rows of round 1 are the displacements of its clients
    row = two.history[1]
    assert row["qp_violated"] == (unit @ before < -1e-10 * np.linalg.norm(before)).sum()
    turned = np.linalg.norm(two.server.m.numpy() - before) / np.linalg.norm(before)
    assert row["qp_turned"] == pytest.approx(turned, rel=1e-9, abs=1e-12)
    assert (unit @ two.server.m.numpy()).min() >= -1e-8
    assert row["qp_residual"] <= 1e-8


@pytest.mark.parametrize("engine", ["vectorized", "processes"])
def test_every_engine_gives_the_same_measurements(task, engine):
    names = ["train", "gradient_norm", "consistency", "drift", "tracking"]
    rows = [train(task, "scaffold", names, engine=z, workers=2).history[-1] for z in ("sequential", engine)]
    for key in ("train_set_loss", "gradient_norm", "consistency", "drift", "cosine", "tracking_error"):
        assert rows[0][key] == pytest.approx(rows[1][key], rel=1e-9)


def test_measurements_happen_at_evaluations_and_do_not_change_training(task):
    names = ["train", "gradient_norm", "consistency", "drift"]
    run, plain = train(task, "fedavg", names, rounds=4, evaluate_every=2), train(task, "fedavg", [], rounds=4)
    assert ["gradient_norm" in row for row in run.history] == [False, True, False, True]
    assert torch.equal(run.params, plain.params)


@pytest.mark.parametrize(
    ("algorithm", "metric", "words"),
    [
        ("fedavg", "drfit", "metrics: unknown name 'drfit'; did you mean drift"),
        ("fedavg", "tracking", "'tracking' is not defined for fedavg"),
        ("scaffold", "qp", "'qp' is not defined for scaffold"),
        ("mifa", "qp", "'qp' is not defined for mifa"),
        ("mifam", "qp", "'qp' is not defined for mifam"),
        ("mifa", "drift", "'drift' is not defined for mifa"),
        ("fedsgd", "consistency", "it does not upload dx"),
        ("domo", "drift", "it does not upload dx"),  # but the displacement from its start, which is not the global model
        ("fedpd", "drift", "it does not upload dx"),  # but a point that is not its local model
    ],
)
def test_a_measurement_that_a_method_lacks_is_refused(task, algorithm, metric, words):
    with pytest.raises(ValueError, match=words):
        train(task, algorithm, [metric])


@pytest.mark.parametrize("algorithm", ["padamfed", "gradma", "vrl-sgd"])
def test_measurements_are_checked_before_a_method_is_planned(algorithm):
    """The fields that depend on the run are still empty, as when a study file is checked."""
    check_defined(["drift"], fk.algorithm(algorithm))


def test_every_metric_name_has_a_measurement() -> None:
    assert tuple(METRICS) == settings.METRICS
