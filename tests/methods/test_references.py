"""Every method against a numpy transcription, written independently, from the papers (tests/reference)."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.core.algorithm import Plan, lookup
from fedkeel.engine import seeding
from fedkeel.engine.settings import Settings
from tests.reference import fadas as fadas_reference
from tests.reference import fedmuon as muon_reference
from tests.reference.task import Task
from tests.tasks import full_only, half_square, linear_clients, linear_model

INPUTS, N, SEED, BATCH = 6, 4, 3, 4
SIZES = (5, 8, 11, 4)  # with 2 epochs of batches of 4: K_i = 4, 4, 6, 2
COHORTS = [[0, 2], [1, 2], [0, 3], [2, 3], [0, 1], [1, 2]]

# Options of a method beside its defaults; each is a separate run. The steps are large enough that every term matters.
CASES: dict[str, list[dict[str, Any]]] = {
    "fedprox": [{"mu": 0.5}],
    "fedavgm": [{"beta1": 0.7, "server_lr": 0.5}],
    "scaffold": [{"option": "I"}, {"option": "II", "server_lr": 0.7}],
    "scaffold-alpha": [{"alpha": 0.3}, {"alpha": 1.25}],
    "scaffold-m": [{"beta": 0.4}, {"beta": 0.4, "start": "warmup"}, {"beta": 0.3, "gamma": 0.2}],
    "scaffold-normalized": [{}, {"lr": 0.05, "gamma": 0.1, "start": "zero"}],
    "padamfed": [{}, {"beta": 0.4, "lr": 0.05, "gamma": 0.2}, {"start": "zero", "beta": 0.7}],
    "padamfed-vr": [{}, {"variant": "listing"}, {"beta": 0.4, "lr": 0.05, "gamma": 0.2}],
    "fedcm": [{"alpha": 0.3, "server_lr": 0.8}],
    "fedadam": [{"server_lr": 0.1}, {"v0": 0.01, "beta2": 0.9}],
    "local-adam": [{"lr": 0.05, "server_lr": 0.9}],
    "local-adam-shared": [{"lr": 0.05}],
    "fedlada": [{"lr": 0.05, "alpha": 0.3, "server_lr": 0.9}],
    "fed-ams": [{"lr": 0.01}, {"lr": 0.0001, "first_round": "frozen"}],
    "fed-lamb": [{"lr": 0.05, "lam": 0.1}, {"lr": 0.05, "lam": 0.1, "first_round": "local_v"}],
    "mime-lamb": [{"lr": 0.05, "lam": 0.1}],
    "fadamet": [{"lr": 0.05}, {"lr": 0.05, "tracking": 1}],
    "fadamgt": [{"lr": 0.05}, {"lr": 0.05, "tracking": 1, "server_lr": 0.8}],
    "fedit-adam": [{"lr": 0.05, "server_lr": 0.9}],
    "fedit-adamet": [{"lr": 0.05, "server_lr": 0.9}],
    "fedit-adamgt": [{"lr": 0.05, "server_lr": 0.9}],
    "fednova": [{"momentum": 0.5}, {"mu": 0.3}, {"beta": 0.5}],
    "slowmo": [{"beta": 0.7, "alpha": 0.8}],
    "fedproxm": [{"mu": 0.5, "beta1": 0.7}],
    "fedadagrad": [{"beta1": 0.5, "v0": 0.01}],
    "fedyogi": [{"server_lr": 0.1, "v0": 0.0}],
    "fedams": [{"lr": 0.1, "bias_correction": True}],
    "fedadam-amended": [{"alpha": 0.3, "server_lr": 0.1}],
    "adaalter": [{"eps_mode": "k_eps2", "eps": 0.5}],
    "fedadt": [{"lr": 0.05, "lam_d": 0.5, "beta_d": 0.7}],
    "fedsps": [{"eta_b": 0.1}, {"c": 2.0}],
    "fafed": [{"a": 0.5, "beta": 0.9}],
    "scaffold-m-vr": [{"beta": 0.4, "start": "warmup"}, {"beta": 0.3, "gamma": 0.2}],
    "fedadc": [{"lr": 0.1, "beta_g": 0.7, "beta_l": 0.4}],
    "mime": [{"lr": 0.1, "base": base} for base in ("sgd", "sgdm", "adam")],
    "mimelite": [{"lr": 0.1, "base": base, "server_lr": 0.8} for base in ("sgd", "sgdm", "adam")],
    "domo": [{"lr": 0.05, "mu_s": 0.5, "mu_l": 0.3, "beta_f": 0.6, "server_lr": 0.8}],
    "feddyn": [{"alpha": 1.0}],
    "fedpd": [{"eta": 0.5}],
    "mifa": [{"server_lr": 0.7}],
    "mifam": [{"beta1": 0.7, "server_lr": 0.7}],
    "gradma": [{"lr": 0.5}, {"lr": 0.5, "memory": 2, "beta2": 0.9}, {"lr": 0.5, "old_model": "global"}],
    "gradma-w": [{"lr": 0.5}, {"lr": 0.5, "old_model": "global"}],
    "fedexp": [{"lr": 0.1, "eps": 0.01}, {"average": False}],
    "fedacg": [{"lam": 0.6, "beta": 0.3}],
    "fedsam": [{"rho": 0.5, "server_lr": 0.8}],
    "mofedsam": [{"rho": 0.5, "alpha": 0.3, "server_lr": 0.8}],
    "fedgamma": [{"rho": 0.5, "server_lr": 0.8}],
    "fedspeed": [{"rho": 0.5, "alpha": 0.6, "prox": 0.5}, {"dual": "all", "alpha": 1.0}],
    "fedsmoo": [{"rho": 0.5, "beta": 2.0}, {"drop_e": True}],
    "fedlesam": [{"rho": 0.5, "server_lr": 0.8}],
    "fedvarp": [{"server_lr": 0.7}],
    "fedau": [{"server_lr": 0.7}, {"cutoff": 2}],
    "delta-sgd": [{"eta0": 0.05, "delta": 0.5, "server_lr": 0.8}, {"eta0": 0.05, "same_batch": False}],
    "fedadamw": [{"lr": 0.05, "alpha": 0.3, "lam": 0.1, "server_lr": 0.8}],
    "fedmuon": [{"lr": 0.02, "muon_scale": 2.0, "alpha": 0.3, "wd": 0.1, "server_lr": 0.8}],
    "fedawe": [{"server_lr": 0.7}],
    "fedcams": [{"lr": 0.1, "server_lr": 0.3}, {"bias_correction": True}],
    "fadas": [{"server_lr": 0.1, "eps": 0.01, "v0": 0.001}, {"bias_correction": True}],
    "diloco": [{"lr": 0.05}, {"lr": 0.05, "state": "reset", "momentum": 0.5, "server_lr": 0.5}],
    "gradma-s": [{}, {"memory": 2}, {"memory": 3, "beta1": 0.9}, {"beta2": 0.0}, {"memory": 0}],
}


# Methods whose control variates depend on what clipping does to the steps. This clip acts on some of them only.
CLIPPED: dict[str, dict[str, Any]] = {
    "scaffold": {"server_lr": 0.7},
    "scaffold-alpha": {"alpha": 0.3},
    "scaffold-m": {"beta": 0.4},
    "fedgamma": {"rho": 0.5},
    "fadamgt": {"lr": 0.05, "tracking": 1},
    "vrl-sgd": {},
    "scaffnew": {"schedule": "fixed"},
}
CLIP = 1.0

# Options that the task carries instead of the reference.
IN_THE_TASK = {"tracking", "schedule"}


def cases() -> list[Any]:
    """The defaults of every registered method, and its options. Methods that look into the model are tested in
    test_features.py, and the random number of steps of scaffnew in test_identities.py."""
    names = [name for name in fk.algorithms() if not lookup(name).facts.needs and not lookup(name).facts.private]
    plain: dict[str, Any] = {"scaffnew": {"schedule": "fixed"}}
    return [
        pytest.param(name, hp, id=f"{name}-{hp}") for name in names for hp in [plain.get(name, {}), *CASES.get(name, [])]
    ]


def shortened(u: np.ndarray) -> np.ndarray:
    return u * min(1.0, CLIP / float(np.linalg.norm(u)))


def task_like(fed: fk.Federation, algo: fk.Algorithm, cohorts: list[list[int]], lr_decay: float, clip: bool = False) -> Task:
    """The same problem as plain arrays, with the mini-batches that the engine draws."""
    settings = Settings(rounds=len(cohorts), local_epochs=2, batch_size=BATCH, seed=SEED)
    K = settings.steps_of(fed.sizes).tolist()
    algo = algo.plan(Plan(N=N, S=len(cohorts[0]), K=float(np.mean(K)), T=len(cohorts)))

    def batch(i: int, t: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        rng = seeding.generator(SEED, seeding.BATCHES, t, i)
        order, sizes = seeding.batch_order(rng, len(fed[i]), K[i], BATCH)
        numbers = np.split(order, np.cumsum(sizes)[:-1])[k]
        return fed[i].x.numpy()[numbers], fed[i].y.numpy()[numbers]

    def gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        error = x @ w[:INPUTS] + w[INPUTS] - y[:, 0]
        return np.append(x.T @ error, error.sum()) / len(x)

    def loss(i: int, t: int, k: int, w: np.ndarray) -> float:
        x, y = batch(i, t, k)
        return 0.5 * float(np.mean((x @ w[:INPUTS] + w[INPUTS] - y[:, 0]) ** 2))

    tracking = []
    for t, ids in enumerate(cohorts):
        drawn = algo.draw(seeding.generator(SEED, seeding.ROLES, t), ids)
        if "K" in drawn:
            K = [int(drawn["K"][0])] * N
        tracking.append([i for i, tracks in zip(ids, drawn.get("tracks", np.ones(len(ids))), strict=True) if tracks])
    x0 = np.linspace(-0.5, 0.7, INPUTS + 1)
    return Task(
        x0=x0,
        N=N,
        cohorts=cohorts,
        K=K,
        grad=lambda i, t, k, w: gradient(*batch(i, t, k), w),
        full_grad=lambda i, w: gradient(fed[i].x.numpy(), fed[i].y.numpy(), w),
        loss=loss,
        lr_decay=lr_decay,
        layers=[slice(0, INPUTS), slice(INPUTS, INPUTS + 1)],
        shapes=[(1, INPUTS), (1,)],
        tracking=tracking,
        **({"clip": shortened} if clip else {}),
    )


@pytest.mark.parametrize(("name", "hp"), cases())
@pytest.mark.parametrize("lr_decay", [1.0, 0.9])
def test_same_weights_as_the_reference(name: str, hp: dict[str, Any], lr_decay: float) -> None:
    compare(name, hp, lr_decay, clip=False)


@pytest.mark.parametrize(("name", "hp"), CLIPPED.items())
@pytest.mark.parametrize("lr_decay", [1.0, 0.9])
def test_same_weights_as_the_reference_with_clipping(name: str, hp: dict[str, Any], lr_decay: float) -> None:
    clipped, free = compare(name, hp, lr_decay, clip=True), compare(name, hp, lr_decay, clip=False)
    assert np.linalg.norm(clipped - free) > 1e-3, "no step was clipped"


def compare(name: str, hp: dict[str, Any], lr_decay: float, clip: bool) -> np.ndarray:
    """The weights of fedkeel after every round, which must be those of the reference; returns the last ones."""
    reference = importlib.import_module(f"tests.reference.{name.replace('-', '_')}").run
    fed = linear_clients(SIZES, INPUTS, seed=1)
    algo = fk.algorithm(name, **hp)
    cohorts = [list(range(N))] * len(COHORTS) if full_only(name) else COHORTS
    # The reference gets the hyper-parameters of this library, so that the test compares the update alone.
    known = inspect.signature(reference).parameters
    values = {key: value for key, value in dataclasses.asdict(algo).items() if key in known and value is not None}
    assert set(hp) - IN_THE_TASK <= set(known), "the reference does not know this option"
    expected = reference(task_like(fed, algo, cohorts, lr_decay, clip), **values)

    models = []
    for rounds in range(1, len(cohorts) + 1):
        # New runs of 1, 2, ... rounds show every round. Methods whose steps depend on T are compared at the end.
        if rounds < len(cohorts) and algo.name in ("padamfed", "padamfed-vr", "scaffold-normalized"):
            continue
        run = fk.train(
            linear_model(INPUTS), fed, algo, rounds=rounds, cohort=cohorts, local_epochs=2, batch_size=BATCH,
            loss=half_square, lr_decay=lr_decay, seed=SEED, engine="sequential", progress=False,
            clip=CLIP if clip else None,
        )  # fmt: skip
        models.append(run.params.numpy())
    expected = expected[-len(models) :]
    assert np.linalg.norm(expected[-1] - np.linspace(-0.5, 0.7, INPUTS + 1)) > 1e-4, "the reference did not move"
    np.testing.assert_allclose(models, expected, rtol=1e-8, atol=1e-10)
    return models[-1]


@pytest.mark.parametrize("cut", ["divide", "cap"])
@pytest.mark.parametrize("lr_decay", [1.0, 0.9])
def test_fadas_with_old_uploads(cut: str, lr_decay: float) -> None:
    """The engine says who arrived in a server step, and how old the uploads were. The rest is the reference's."""
    steps: list[tuple[list[int], list[int]]] = []

    class Watched(type(fk.algorithm("fadas"))):  # type: ignore[misc]
        def server(self, s: Any, up: Any, r: Any) -> Any:
            steps.append((r.ids.tolist(), [int(r.t - tau) for tau in r.delay.tolist()]))
            return super().server(s, up, r)

    fed, hp = linear_clients(SIZES, INPUTS, seed=1), {"server_lr": 0.4, "eps": 0.01, "cut": cut}
    run = fk.train(
        linear_model(INPUTS), fed, Watched(**hp), rounds=12, cohort=2, clock="phones", buffer=1, concurrency=4,
        staleness="constant", local_epochs=2, batch_size=BATCH, loss=half_square, lr_decay=lr_decay, seed=SEED,
        engine="sequential", progress=False,
    )  # fmt: skip
    steps = steps[-12:]  # the engine tries the server's step before it starts
    task = task_like(fed, fk.algorithm("fadas"), [ids for ids, _ in steps], lr_decay)
    task.started = [started for _, started in steps]
    assert max(t - min(started) for t, started in enumerate(task.started)) >= 3, "no upload is old"
    np.testing.assert_allclose(run.params.numpy(), fadas_reference.run(task, **hp)[-1], rtol=1e-8, atol=1e-10)


def test_fedmuon_with_more_rows_than_columns() -> None:
    """The matrix of the problem above is one row. Here it is [5, 2], which the iteration transposes and scales."""
    rows, columns, size = 5, 2, 6
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(size, columns)), rng.normal(size=(size, rows))) for _ in range(N)]
    x0 = np.linspace(-0.5, 0.7, rows * columns + rows)

    def gradient(i: int, w: np.ndarray) -> np.ndarray:
        (x, y), W = data[i], w[: rows * columns].reshape(rows, columns)
        error = (x @ W.T + w[rows * columns :] - y) / (size * rows)  # the loss is half the mean over samples and outputs
        return np.append((error.T @ x).ravel(), error.sum(0))

    task = Task(
        x0=x0, N=N, cohorts=COHORTS, K=[3] * N, grad=lambda i, t, k, w: gradient(i, w), full_grad=gradient,
        loss=lambda *_: 0.0, layers=[slice(0, rows * columns), slice(rows * columns, len(x0))],
        shapes=[(rows, columns), (rows,)],
    )  # fmt: skip
    hp: dict[str, Any] = {"lr": 0.02, "muon_scale": 2.0, "alpha": 0.3, "wd": 0.1, "server_lr": 0.8}
    model = nn.Linear(columns, rows).double()
    nn.utils.vector_to_parameters(torch.tensor(x0), model.parameters())
    run = fk.train(
        model, fk.Federation.from_arrays(data), fk.algorithm("fedmuon", **hp), rounds=len(COHORTS), cohort=COHORTS,
        local_steps=3, batch_size=None, loss=half_square, engine="sequential", progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(run.params.numpy(), muon_reference.run(task, **hp)[-1], rtol=1e-8, atol=1e-10)


def test_a_first_step_of_fedmuon_by_its_singular_values() -> None:
    """The formula once more, without products of matrices: the iteration applies its polynomial to singular values."""
    rows, columns, lr, scale, wd = 5, 2, 0.02, 2.0, 0.1
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(6, columns)), rng.normal(size=(6, rows))
    W = rng.normal(size=(rows, columns))
    U, s, V = np.linalg.svd((x @ W.T - y).T @ x / y.size, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    size = lr * scale  # alpha = 0
    expected = (1 - size * wd) * W - size * np.sqrt(rows / columns) * (U * s) @ V

    model = nn.Linear(columns, rows, bias=False).double()
    nn.utils.vector_to_parameters(torch.tensor(W.ravel()), model.parameters())
    algo = fk.algorithm("fedmuon", lr=lr, muon_scale=scale, alpha=0.0, wd=wd)
    run = fk.train(
        model, fk.Federation.from_arrays([(x, y)]), algo, rounds=1, cohort=1, local_steps=1, batch_size=None,
        loss=half_square, engine="sequential", progress=False,
    )  # fmt: skip
    # Dividing by the norm plus 1e-7 moves the result by about 1e-5 of its size, since the momentum is a small multiple of g.
    np.testing.assert_allclose(run.params.numpy().reshape(rows, columns), expected, atol=1e-6)
