"""Methods as contributors write them: unusual ones work in all engines, wrong ones are refused with a clear error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.core import algorithm as registry
from fedkeel.core.algorithm import Algorithm, algorithm
from fedkeel.core.hyperparameters import hp
from fedkeel.rules.tracking import pick

D, CLASSES, SIZES = 4, 3, (8, 12, 16, 20)
RNG = np.random.default_rng(0)
FED = fk.Federation.from_arrays([(RNG.normal(size=(n, D)), RNG.integers(0, CLASSES, n)) for n in SIZES])


class Server(NamedTuple):
    x: Tensor
    m: Tensor


class Client(NamedTuple):
    u: Tensor


class Up(NamedTuple):
    dx: Tensor


class Survey(NamedTuple):
    g: Tensor


class Plain(Algorithm):
    """FedAvg with a record that has no use."""

    lr: float

    def init(self, x: Tensor) -> Any:
        return Server(x, torch.zeros_like(x)), Client(torch.zeros_like(x))

    def client(self, down: Any, mem: Any, steps: Any) -> Any:
        w = steps.copy(down.x)
        for grad in steps:
            w.sub_(steps.clip(grad(w)), alpha=self.lr)
        return Up(w - down.x), Client(w - down.x)

    def server(self, s: Any, up: Any, r: Any) -> Any:
        return Server(s.x + r.avg(up.dx), s.m)


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Removes the method of a test from the registry afterwards."""
    yield
    registry.registered.pop("contributed", None)


def method(base: type = Plain, sends: str = "x", private: bool = False, **over: Any) -> Algorithm:
    body = {"__annotations__": {"lr": float}, "lr": hp(0.1, "step size", above=0), **over}
    made = dataclass(frozen=True, kw_only=True)(type("Contributed", (base,), body))
    facts = {"paper": "none", "sends": sends, "exact": False, "family": "SGD", "private": private}
    return algorithm("contributed", **facts)(made)()  # type: ignore[arg-type]


def linear() -> nn.Module:
    return nn.Linear(D, CLASSES)


def train(algo: Any, engine: str = "sequential", model: Any = linear, fed: fk.Federation = FED, **kw: Any) -> fk.Run:
    settings = {"rounds": 2, "cohort": 4, "local_steps": 2, "batch_size": 4, "dtype": torch.float64, "workers": 2} | kw
    return fk.train(model, fed, algo, engine=engine, progress=False, **settings)


engines = pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes"])


# Wrong ones -----------------------------------------------------------------------------------------------------------


def after(change: Callable[..., Any]) -> Callable[..., Any]:
    """A client that does the work, and returns something else."""
    return lambda self, down, mem, steps: change(*Plain.client(self, down, mem, steps))


class More(NamedTuple):
    u: Tensor
    k: Tensor


class Renamed(NamedTuple):
    other: Tensor


WRONG = {
    "a tuple as upload": ({"client": after(lambda up, new: ((up.dx,), new))}, "client returns a tuple as its upload"),
    "a number in the upload": ({"client": after(lambda up, new: (Up(1.0), new))}, "must be a NamedTuple of tensors"),
    "only the upload": ({"client": after(lambda up, new: up)}, "client fails in a trial step"),
    "record of shape [1]": ({"client": after(lambda up, new: (up, Client(new.u[..., :1])))}, r"u \[1\]; init declares"),
    "record lost": ({"client": after(lambda up, new: (up, None))}, r"record of no fields; init declares u \[4\]"),
    "record with a field more": ({"client": after(lambda up, new: (up, More(new.u, new.u)))}, r"u \[4\], k \[4\];"),
    "record renamed": ({"client": after(lambda up, new: (up, Renamed(new.u)))}, r"other \[4\]; init declares u \[4\]"),
    "record not declared": ({"init": lambda self, x: (Server(x, x), None)}, "init declares no fields"),
    "a typo": ({"client": lambda self, down, mem, steps: down.y}, "client fails .*AttributeError: .*'y'"),
    "unknown field sent": ({"sends": "x q"}, "client fails .*'q'"),
    "roles of another length": ({"draw": lambda self, rng, ids: {"a": np.ones(2 * len(ids))}}, "draw returns a = "),
    "roles in a list": ({"draw": lambda self, rng, ids: {"a": [1.0] * len(ids)}}, "draw returns a = "),
    "a fraction of a step": ({"draw": lambda self, rng, ids: {"K": np.full(len(ids), 1.5)}}, "K = .* whole numbers >= 1"),
    "no step": ({"draw": lambda self, rng, ids: {"K": np.zeros(len(ids), dtype=int)}}, "K = .* whole numbers >= 1"),
    "private with a record": ({"private": True}, "must not declare a client record"),
}  # fmt: skip


@engines
@pytest.mark.parametrize("case", WRONG)
def test_wrong_records_are_refused_by_name(case: str, engine: str) -> None:
    over, words = WRONG[case]
    with pytest.raises(ValueError, match=f"contributed: .*{words}"):
        train(method(**over), engine)


@engines
@pytest.mark.parametrize(
    "server",
    [
        lambda self, s, up, r: Server(s.x + up.dx, s.m),
        lambda self, s, up, r: Server(s.x, up.dx),
        lambda self, s, up, r: Server(s.x.float(), s.m),
        lambda self, s, up, r: None,
    ],
)
def test_a_server_record_keeps_its_form(server: Any, engine: str) -> None:
    with pytest.raises(fk.RoundError, match="contributed, round 0, server: ValueError: the server record has another form"):
        train(method(server=server), engine)


@pytest.mark.parametrize("engine", ["sequential", "processes"])
@pytest.mark.parametrize("what", ["x", "u"])
def test_a_client_must_not_change_its_inputs(what: str, engine: str) -> None:
    def client(self: Any, down: Any, mem: Any, steps: Any) -> Any:
        up, new = Plain.client(self, down, mem, steps)
        (down.x if what == "x" else mem.u).add_(1)
        return up, new

    with pytest.raises(fk.RoundError, match=f"contributed, round 0.*{what} was changed in place"):
        train(method(client=client), engine)


def test_an_upload_whose_shape_differs_from_the_others() -> None:
    def client(self: Any, down: Any, mem: Any, steps: Any) -> Any:
        up, new = Plain.client(self, down, mem, steps)
        return (Up(up.dx[:1]) if len(steps) == 4 else up), new

    run = train(method(client=client), local_steps=None, local_epochs=1)
    assert {why for row in run.history for why in row["faults"].values()} == {"ValueError: dx has shape [1], others [15]"}
    assert [row["dropped"] for row in run.history] == [1, 1]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_the_error_has_its_cause(engine: str) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        raise ZeroDivisionError("here")

    with pytest.raises(fk.RoundError) as caught:
        train("fedavg", engine, loss=loss)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# Unusual ones ---------------------------------------------------------------------------------------------------------


class WithSurvey(Plain):
    """Its `survey_server` must run once per round."""

    def surveys(self, t: int = 0) -> bool:
        return True

    def survey(self, down: Any, mem: Any, steps: Any) -> Any:
        return Survey(steps.full_grad(down.x)), Client(mem.u + 1)

    def survey_server(self, s: Any, up: Any, r: Any) -> Any:
        return s._replace(m=0.9 * s.m + r.avg(up.g))

    def client(self, down: Any, mem: Any, steps: Any) -> Any:
        w = steps.copy(down.x)
        for grad in steps:
            w.sub_(grad(w) + down.m, alpha=self.lr)
        return Up(w - down.x), Client(mem.u * 1)


def test_a_stop_between_two_exchanges_of_a_round(tmp_path: Path) -> None:
    away = False

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if away and len(target) == 4:  # a mini-batch, and not all data
            raise RuntimeError("away")
        return functional.cross_entropy(output, target)

    def go(rounds: int, **kw: Any) -> fk.Run:
        return train(method(WithSurvey, sends="x m"), rounds=rounds, loss=loss, min_clients=4, **kw)

    whole = go(3)
    go(1, out=tmp_path / "run")
    away = True
    with pytest.raises(fk.RoundError, match="round 1, client 0, client"):
        go(3, out=tmp_path / "run", resume=True)
    away = False
    again = go(3, out=tmp_path / "run", resume=True)
    assert torch.equal(whole.params, again.params)
    assert torch.equal(whole.clients[0].u, again.clients[0].u)


def test_a_survey_in_every_second_round() -> None:
    class Sometimes(WithSurvey):
        def surveys(self, t: int = 0) -> bool:
            return t % 2 == 1

    one, *others = [train(method(Sometimes, sends="x m"), engine, rounds=4) for engine in ("sequential", "processes")]
    assert all(torch.equal(one.params, other.params) for other in others)
    assert [row["up"] for row in one.history] == [15, 30, 15, 30]


def test_roles_are_those_of_the_survey() -> None:
    roles: dict[str, dict[int, float]] = {}

    def survey(self: Any, down: Any, mem: Any, steps: Any) -> Any:
        if steps.t == 1 and sum(len(y) for _, y, _ in steps.everything()) == SIZES[0]:
            raise RuntimeError("away")
        return Survey(steps.full_grad(down.x)), mem

    def tell(stage: str) -> Callable[..., Any]:
        def step(self: Any, s: Any, up: Any, r: Any) -> Any:
            roles[stage] = dict(zip(r.ids.tolist(), r.drawn.tracks.tolist(), strict=True))
            return s

        return step

    over = {"survey": survey, "survey_server": tell("survey"), "server": tell("client")}
    algo = method(WithSurvey, sends="x m", draw=lambda self, rng, ids: {"tracks": pick(rng, len(ids), 2)}, **over)
    for seed in range(3):  # with one seed the same clients might be drawn by chance
        train(algo, seed=seed)
        assert roles["client"] == roles["survey"]
        assert list(roles["client"]) == [1, 2, 3]


def test_a_record_with_another_layout_is_not_read(tmp_path: Path) -> None:
    train(method(), out=tmp_path / "run")
    other = method(
        init=lambda self, x: (Server(x, x * 0), More(x * 0, x * 0)), client=after(lambda up, new: (up, More(new.u, new.u)))
    )
    with pytest.raises(ValueError, match="resume: the client records differ"):
        train(other, out=tmp_path / "run", resume=True, rounds=3)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, CLASSES))


@pytest.mark.parametrize("name", ["mime", "mimelite", "scaffold-m-vr", "moon", "fedprox"])
@pytest.mark.parametrize("stop", [1, 2])
def test_bits_after_a_resume_do_not_depend_on_alignment_in_the_file(name: str, stop: int, tmp_path: Path) -> None:
    settings = {"model": net, "dtype": torch.float32, "batch_size": 5}
    whole = train(name, rounds=4, **settings)
    train(name, rounds=stop, out=tmp_path / "run", **settings)
    assert torch.equal(whole.params, train(name, rounds=4, out=tmp_path / "run", resume=True, **settings).params)


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fed-lamb", "contributed"])
@pytest.mark.parametrize("used", [True, False])
def test_a_name_can_be_registered_once(name: str, used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the name of a built-in method whose file is not imported yet."""
    method()
    first = registry.lookup(name)
    if not used and name != "contributed":
        package, _, own = first.__module__.rpartition(".")
        monkeypatch.setattr(sys.modules[package], own, sys.modules[first.__module__])  # restore what the import replaces
        monkeypatch.delitem(registry.registered, name)
        monkeypatch.delitem(sys.modules, first.__module__)
    other = type("Other", (Plain,), {})
    with pytest.raises(ValueError, match=f"algorithm: the name '{name}' is taken by .*{first.__qualname__}; choose another"):
        algorithm(name, paper="", sends="x", exact=False, family="SGD")(other)
    assert registry.lookup(name).__qualname__ == first.__qualname__


def test_the_same_method_may_be_registered_again() -> None:
    """A module may be reloaded, and a notebook cell may be run again. Then the new class replaces the old one."""
    first, again = type(method()), type(method())
    assert first is not again
    assert registry.lookup("contributed") is again
    old = registry.lookup("fedavg")
    try:
        assert importlib.reload(sys.modules[old.__module__]).FedAvg is registry.lookup("fedavg")
        assert registry.lookup("fedavg") is not old
    finally:
        sys.modules[old.__module__].FedAvg = registry.registered["fedavg"] = old  # type: ignore[attr-defined]


# Methods that draw, and methods that look at layers -------------------------------------------------------------------


def noisy(self: Any, down: Any, mem: Any, steps: Any) -> Any:
    """Plain with random noise in every step."""
    w = steps.copy(down.x)
    for grad in steps:
        noise = steps.random(lambda made: torch.randn(down.x.shape[-1], generator=made, dtype=down.x.dtype))
        w.sub_(steps.clip(grad(w).add_(noise, alpha=0.1)), alpha=self.lr)
    return Up(w - down.x), Client(w - down.x)


def test_a_method_draws_the_same_numbers_in_every_engine() -> None:
    kw = {"rounds": 3, "cohort": 3}
    run, parallel, together = (
        train(method(client=noisy), engine, **kw) for engine in ("sequential", "processes", "vectorized")
    )
    assert torch.equal(run.params, parallel.params)
    torch.testing.assert_close(run.params, together.params, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(run.params, train(method(), **kw).params)
    assert not torch.allclose(run.params, train(method(client=noisy), seed=1, **kw).params)


def test_draws_differ_between_clients_rounds_and_steps() -> None:
    drawn = []

    def client(self: Any, down: Any, mem: Any, steps: Any) -> Any:
        drawn.extend(steps.random(lambda made: torch.rand(1, generator=made)).item() for _ in steps)
        return Plain.client(self, down, mem, steps)

    train(method(client=client), rounds=2)
    trials, real = drawn[:-16], drawn[-16:]  # 2 rounds of 4 clients with 2 steps
    assert len(set(real)) == 16
    assert trials
    assert not set(trials) & set(real)


def test_plan_knows_the_layers() -> None:
    known = []

    def plan(self: Any, p: Any) -> Any:
        known.append(p.layers)
        return self

    def client(self: Any, down: Any, mem: Any, steps: Any) -> Any:
        known.append([list(z.shape) for z in steps.layers.split(down.x)])
        return Plain.client(self, down, mem, steps)

    train(method(plan=plan, client=client), rounds=1)
    layers, trial, *_, real = known
    assert (layers.names, layers.shapes, layers.sizes) == (["weight", "bias"], [(CLASSES, D), (CLASSES,)], [12, 3])
    assert (trial, real) == ([[2], [2]], [[CLASSES, D], [CLASSES]])
