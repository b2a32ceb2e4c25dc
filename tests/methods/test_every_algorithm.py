"""Every registered method obeys the laws of `fedkeel.laws`. A new method is tested here without further work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor

import fedkeel as fk
from fedkeel.core.algorithm import Algorithm, Plan, algorithm, algorithms, lookup
from fedkeel.engine.metrics import check_defined
from fedkeel.laws import method_laws
from tests.tasks import digits_fed, small_net

NAMES = fk.algorithms()

every = pytest.mark.parametrize("name", NAMES)


# With these settings a short run reaches the fixed point. The defaults would need a long run.
FIXED_POINT: dict[str, dict[str, Any]] = {
    "fadamgt": {"lr": 0.1, "eps": 1.0},
    "fadamet": {"lr": 0.1, "eps": 1.0},
    "fedit-adamgt": {"lr": 0.1, "eps": 1.0, "server_lr": 1.0},
    "fedit-adamet": {"lr": 0.1, "eps": 1.0},
    "fedit-adam": {"lr": 0.02},
    "scaffold-m": {"beta": 0.5},
    "scaffold-m-vr": {"beta": 0.5},
    "padamfed": {"lr": 1e-4, "gamma": 2e-4, "beta": 0.5},
    "padamfed-vr": {"lr": 1e-4, "gamma": 2e-4, "beta": 0.5},
    "scaffold-normalized": {"lr": 1e-4, "gamma": 2e-4},
    "local-adam": {"lr": 0.02},
    "local-adam-shared": {"lr": 0.02},
    "fedlada": {"lr": 0.1, "alpha": 0.5},
    "fed-ams": {"lr": 0.02},
    "feddyn": {"alpha": 1.0},
    "fedpd": {"lr": 0.1, "eta": 1.0},
}


@every
@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=pytest.mark.slow if "neural" in law else ()) for law in method_laws.LAWS]
)
def test_law(name: str, law: str) -> None:
    method_laws.LAWS[law](name)


@every
def test_minimiser_is_a_fixed_point_exactly_if_declared(name: str) -> None:
    method_laws.minimiser_is_a_fixed_point_exactly_if_declared(name, **FIXED_POINT.get(name, {}))


@pytest.mark.parametrize("tracking", [0.0, 1.5, 50.0])
@pytest.mark.parametrize("name", ["fadamet", "fadamgt"])
def test_a_fraction_of_tracking_clients_is_at_most_one(name: str, tracking: float) -> None:
    with pytest.raises(ValueError, match="a fraction is > 0 and <= 1, a count is written without a point"):
        fk.algorithm(name, tracking=tracking).plan(Plan(N=10, S=5, K=1, T=1))
    with pytest.raises(ValueError, match="tracking = 6 is not allowed; at most all clients of a round can track, 5"):
        fk.algorithm(name, tracking=6).plan(Plan(N=10, S=5, K=1, T=1))
    check_defined(["drift", "consistency"], fk.algorithm(name, tracking=5))  # in a trial, one client stands for all


@pytest.mark.parametrize("tracking", [0, 1, 0.5, 3, None])
@pytest.mark.parametrize("name", ["fadamet", "fadamgt"])
def test_only_tracking_clients_pay_for_tracking(name: str, tracking: float | None) -> None:
    fed = digits_fed(6)
    run = method_laws.train(fk.algorithm(name, tracking=tracking), fed, small_net(), cohort=4, rounds=2)
    Y = {None: 4, 0.5: 2}.get(tracking, tracking)
    d = len(run.params)
    assert [row["up"] / d for row in run.history] == [1 + Y / 4] * 2
    assert [row["down"] / d for row in run.history] == [2] * 2
    assert sum(bool(run.clients[i] is not None and run.clients[i].y.abs().sum() > 0) for i in range(6)) <= 2 * Y


# Declarations ---


@pytest.mark.parametrize(
    ("name", "hp"),
    [("fedavg", {"lr": np.float32(0.5)}), ("fedavg", {"lr": np.int64(2)}), ("gradma", {"memory": np.int64(3)}),
     ("fadamet", {"persist_vhat": np.True_}), ("fadamet", {"tracking": np.uint8(1)})],
)  # fmt: skip
def test_numpy_hyperparameters_become_python_numbers(name: str, hp: dict[str, Any]) -> None:
    ((key, value),) = hp.items()
    kept = getattr(fk.algorithm(name, **hp), key)
    assert (kept, type(kept)) == (value.item(), type(value.item()))


@pytest.mark.parametrize(
    ("name", "hp", "words"),
    [
        ("fedavg", {"lr": np.float32(-1)}, r"lr = -1.0 is not allowed; it must be > 0"),
        ("fedavg", {"lr": True}, r"lr = True is not allowed; it must be > 0"),
        ("gradma", {"memory": 3.5}, r"memory = 3.5 is not allowed; it must be a whole number >= 0"),
    ],
)
def test_hyperparameters_are_refused_for_a_true_reason(name: str, hp: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: {words}"):
        fk.algorithm(name, **hp)


def test_texts_without_choices() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Spoken(lookup("fedavg")):  # type: ignore[misc]
        mode: str = "fast"
        other: str | None = None

    assert Spoken(mode="slow", other="word").mode == "slow"
    for bad in ({"mode": 3}, {"other": 3}, {"mode": None}):
        with pytest.raises(ValueError, match="is not allowed; it must be a text"):
            Spoken(**bad)


@pytest.mark.parametrize("name", [None, 3])
def test_an_algorithm_has_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match=f"algorithm: expected a name, not {type(name).__name__}"):
        fk.algorithm(name)


def test_unknown_algorithm_names_its_neighbours() -> None:
    with pytest.raises(ValueError, match="did you mean fedlada"):
        fk.algorithm("fedlda")


@pytest.mark.parametrize(
    ("says", "missing"), [("warms_up", "warmup and warmup_server"), ("surveys", "survey and survey_server")]
)
def test_a_method_that_announces_an_exchange_must_define_both_halves(says: str, missing: str) -> None:
    half = type("Half", (Algorithm,), {says: lambda self, t=0: True})
    with pytest.raises(TypeError, match=f"half: it defines {says}, so it must define {missing}, too"):
        algorithm("half", paper="", sends="x", exact=False, family="SGD")(half)
    assert "half" not in algorithms()


@pytest.mark.parametrize(
    ("says", "half", "former", "now"),
    [("warms_up", "warmup", "begin", "warmup_server"), ("surveys", "survey", "prepare", "survey_server")],
)
def test_a_hook_with_its_former_name_is_refused_with_its_new_one(says: str, half: str, former: str, now: str) -> None:
    body = {says: lambda self, t=0: True, half: lambda self, down, mem, steps: None, former: lambda self, s, up, r: s}
    with pytest.raises(TypeError, match=f"old: it defines {former}, which is now called {now}; rename it"):
        algorithm("old", paper="", sends="x", exact=False, family="SGD")(type("Old", (Algorithm,), body))
    assert "old" not in algorithms()


def test_an_unknown_problem_is_refused() -> None:
    words = r"vague: solves = 'drfit' is not allowed; it must be one or more of drift, adaptivity, sharpness, absence"
    with pytest.raises(ValueError, match=words):
        algorithm("vague", paper="", sends="x", exact=False, family="SGD", solves="drfit")(type("Vague", (Algorithm,), {}))
    assert "vague" not in algorithms()


class Sent(NamedTuple):
    x: Tensor
    m: Tensor


@pytest.mark.parametrize("hook", ["client", "survey", "warmup"])
@pytest.mark.parametrize("annotation", [Sent, "Sent"])
def test_what_a_client_receives_has_the_fields_that_are_sent(annotation: Any, hook: str) -> None:
    def local(self: Any, down: Any, mem: Any, steps: Any) -> Any: ...

    local.__annotations__["down"] = annotation
    made = type("Received", (Algorithm,), {"client": lambda self, down, mem, steps: None, hook: local})
    words = f"received: {hook} takes down: Sent with the fields 'x m', but sends = 'x'"
    with pytest.raises(TypeError, match=words):
        algorithm("received", paper="", sends="x", exact=False, family="SGD")(made)
    assert "received" not in algorithms()


def test_a_type_checker_refuses_a_field_that_is_not_sent(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    text = Path(fk.__file__).with_name("methods").joinpath("fedavgm.py").read_text()
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(text)
    bad.write_text(text.replace("steps.copy(down.x)", "steps.copy(down.m)"))
    assert good.read_text() != bad.read_text()
    options = ["--follow-imports=skip", "--ignore-missing-imports", "--config-file=", f"--cache-dir={tmp_path}"]
    assert api.run([*options, str(good)])[2] == 0
    out, _, status = api.run([*options, str(bad)])
    assert status == 1
    assert '"Down" has no attribute "m"' in out
