"""Every method against a numpy transcription, written independently, from the papers (tests/reference)."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.core.algorithm import Plan, lookup
from fedkeel.engine import seeding
from fedkeel.engine.settings import Settings
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
    "gradma-s": [{}, {"memory": 2}, {"memory": 3, "beta1": 0.9}, {"beta2": 0.0}, {"memory": 0}],
}


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


def task_like(fed: fk.Federation, algo: fk.Algorithm, cohorts: list[list[int]], lr_decay: float) -> Task:
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
        tracking=tracking,
    )


@pytest.mark.parametrize(("name", "hp"), cases())
@pytest.mark.parametrize("lr_decay", [1.0, 0.9])
def test_same_weights_as_the_reference(name: str, hp: dict[str, Any], lr_decay: float) -> None:
    reference = importlib.import_module(f"tests.reference.{name.replace('-', '_')}").run
    fed = linear_clients(SIZES, INPUTS, seed=1)
    algo = fk.algorithm(name, **hp)
    cohorts = [list(range(N))] * len(COHORTS) if full_only(name) else COHORTS
    # The reference gets the hyper-parameters of this library, so that the test compares the update alone.
    known = inspect.signature(reference).parameters
    values = {key: value for key, value in dataclasses.asdict(algo).items() if key in known and value is not None}
    assert set(hp) - IN_THE_TASK <= set(known), "the reference does not know this option"
    expected = reference(task_like(fed, algo, cohorts, lr_decay), **values)

    models = []
    for rounds in range(1, len(cohorts) + 1):
        # New runs of 1, 2, ... rounds show every round. Methods whose steps depend on T are compared at the end.
        if rounds < len(cohorts) and algo.name in ("padamfed", "padamfed-vr", "scaffold-normalized"):
            continue
        run = fk.train(
            linear_model(INPUTS), fed, algo, rounds=rounds, cohort=cohorts, local_epochs=2, batch_size=BATCH,
            loss=half_square, lr_decay=lr_decay, seed=SEED, engine="sequential", progress=False,
        )  # fmt: skip
        models.append(run.params.numpy())
    expected = expected[-len(models) :]
    assert np.linalg.norm(expected[-1] - np.linspace(-0.5, 0.7, INPUTS + 1)) > 1e-4, "the reference did not move"
    np.testing.assert_allclose(models, expected, rtol=1e-8, atol=1e-10)
