"""Laws that every registered method obeys. A new method is tested here without further work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.core.algorithm import SERVER_HOOKS, Algorithm, Plan, algorithm, algorithms, lookup, received
from fedkeel.core.flat import Layers
from fedkeel.core.records import down_record, trial_upload
from fedkeel.engine.client_work import ClientTask, ClientWork
from fedkeel.engine.metrics import check_defined
from fedkeel.engine.settings import Settings
from fedkeel.engine.train import make_flat
from tests.tasks import (
    copy_record,
    digits_fed,
    full_only,
    half_square,
    linear_clients,
    linear_model,
    minimiser,
    same_record,
    small_net,
)

NAMES = fk.algorithms()

every = pytest.mark.parametrize("name", NAMES)


def train(name: str | fk.Algorithm, fed: fk.Federation, model: Any, **kw: Any) -> fk.Run:
    settings = {"rounds": 3, "cohort": 3, "engine": "sequential", "progress": False, "batch_size": 8, "local_steps": 3}
    settings |= kw
    if full_only(name if isinstance(name, str) else name.name):
        settings["cohort"] = len(fed)
    return fk.train(model, fed, name, **settings)


# What a method may do -------------------------------------------------------------------------------------------------


class Watched:
    """Runs the parts of a method by hand, on real data, and keeps their inputs."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32, **hp: Any) -> None:
        from fedkeel.core.steps import Objective
        from fedkeel.engine.loss import cross_entropy

        self.fed = digits_fed(6)
        self.flat = make_flat(small_net(), 0, "cpu", dtype)
        self.algo = fk.algorithm(name, **hp).plan(Plan(N=6, S=6, K=3, T=10, layers=self.flat.layers))
        self.settings = Settings(rounds=10, cohort=6, local_steps=3, batch_size=8)
        self.work = ClientWork(self.algo, self.fed, Objective(self.flat, cross_entropy), 0, 8, 1.0)
        self.server, self.mem = self.algo.init(self.flat.vector())

    @torch.no_grad()
    def clients(self, stage: str, t: int, mems: list[Any]) -> list[Any]:
        drawn = self.algo.draw(np.random.default_rng(t + 1), range(6))
        K = drawn.pop("K", np.full(6, 3))
        down = down_record(self.algo, self.server)
        results = []
        for i in range(6):
            roles = {k: float(z[i]) for k, z in drawn.items()}
            result = self.work.run_client(
                ClientTask(stage, t, i, int(K[i]), roles, i), down, self.flat.read_buffers(), mems[i]
            )
            result.up, result.mem = copy_record(result.up), copy_record(result.mem)  # as an engine does
            results.append(result)
        return results


def facts(t: int, drawn: dict[str, np.ndarray]) -> Any:
    from types import SimpleNamespace

    from fedkeel.core.round import Round

    sixth = torch.full((6,), 1 / 6, dtype=torch.float64)
    roles = SimpleNamespace(**{k: torch.from_numpy(z).double() for k, z in drawn.items()})
    return Round(t, 6, torch.arange(6), torch.full((6,), 3.0, dtype=torch.float64), sixth, sixth, roles)


def stages(algo: fk.Algorithm) -> list[tuple[str, str, int]]:
    before = [("warmup", "warmup_server", -1)] if algo.warms_up() else []
    for t in range(2):
        before += [("survey", "survey_server", t)] if algo.surveys() else []
        before += [("client", "server", t)]
    return before


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_inputs_do_not_change_and_records_keep_their_form(name: str, dtype: torch.dtype) -> None:
    run = Watched(name, dtype)
    mems = [run.mem] * 6
    for stage, step, t in stages(run.algo):
        drawn = run.algo.draw(np.random.default_rng(t + 1), range(6))
        drawn.pop("K", None)
        server, kept = copy_record(run.server), [copy_record(mem) for mem in mems]
        results = run.clients(stage, t, mems)
        assert same_record(run.server, server), f"{stage} changed what it was sent"
        assert all(same_record(a, b) for a, b in zip(mems, kept, strict=True)), f"{stage} changed a client's record"
        ups = [result.up for result in results]
        stack = type(ups[0])(*(torch.stack(z) for z in zip(*ups, strict=True)))
        given = copy_record(stack)
        new = getattr(run.algo, step)(run.server, stack, facts(t, drawn))
        assert same_record(stack, given), f"{step} changed the uploads"
        assert same_record(run.server, server, without=run.algo.facts.owns), f"{step} changed the server record"
        for old, fresh in [(run.server, new), *((a, result.mem) for a, result in zip(mems, results, strict=True))]:
            assert (old is None) == (fresh is None)
            for field in () if old is None else old._fields:
                a, b = getattr(old, field), getattr(fresh, field)
                assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device), field
        run.server, mems = new, [result.mem for result in results]


@every
def test_counted_cost_is_what_would_be_sent(name: str) -> None:
    run = Watched(name)
    cost, down_cost = 0.0, 0
    for stage, step, t in stages(run.algo)[: 1 + run.algo.surveys() + run.algo.warms_up()]:
        drawn = run.algo.draw(np.random.default_rng(t + 1), range(6))
        drawn.pop("K", None)
        results = run.clients(stage, t, [run.mem] * 6)
        down = down_record(run.algo, run.server)
        down_cost = len(save({f: z.clone() for f, z in down._asdict().items()}))
        sent = 0
        for i, result in enumerate(results):
            tracks = drawn.get("tracks", np.ones(6))[i]
            fields = {f: z.clone() for f, z in result.up._asdict().items() if tracks or f not in run.algo.facts.tracked}
            sent += sum(z.numel() for z in fields.values())
        cost += 0 if stage == "warmup" else sent / 6
        ups = [result.up for result in results]
        stack = type(ups[0])(*(torch.stack(z) for z in zip(*ups, strict=True)))
        run.server = getattr(run.algo, step)(run.server, stack, facts(t, drawn))
    row = train(name, run.fed, small_net(), rounds=1, cohort=6).history[0]
    assert row["up"] == pytest.approx(cost)
    assert 0 <= down_cost - 4 * row["down"] < 2000, "safetensors adds only a header"


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
    run = train(fk.algorithm(name, tracking=tracking), fed, small_net(), cohort=4, rounds=2)
    Y = {None: 4, 0.5: 2}.get(tracking, tracking)
    d = len(run.params)
    assert [row["up"] / d for row in run.history] == [1 + Y / 4] * 2
    assert [row["down"] / d for row in run.history] == [2] * 2
    assert sum(bool(run.clients[i] is not None and run.clients[i].y.abs().sum() > 0) for i in range(6)) <= 2 * Y


# Corner cases ---------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("setting", ["S = 1", "K = 1", "N = 1", "batch = 1", "full batch", "unequal K"])
def test_corner_cases_run(name: str, setting: str) -> None:
    fed = digits_fed(5)
    kw: dict[str, Any] = {
        "S = 1": {"cohort": 1},
        "K = 1": {"local_steps": 1},
        "N = 1": {"cohort": 1},
        "batch = 1": {"batch_size": 1},
        "full batch": {"batch_size": None},
        "unequal K": {"local_steps": None, "local_epochs": 1, "batch_size": 30},
    }[setting]
    if setting == "N = 1":
        fed = fk.Federation.from_arrays([(fed[0].x, fed[0].y)], test=fed.test)
    run = train(name, fed, small_net(), **kw)
    assert torch.isfinite(run.params).all()
    assert sum(row["dropped"] for row in run.history) == 0


@every
def test_clipping_changes_the_step(name: str) -> None:
    """A tiny clip must change what a client does, unless the method ignores the length of a direction."""
    fed = digits_fed(5)
    kw = {"rounds": 1, "cohort": 5, "local_steps": 2}
    free, clipped = train(name, fed, small_net(), **kw), train(name, fed, small_net(), clip=1e-3, **kw)
    unit = lookup(name).facts.local.startswith("unit-norm")
    assert torch.equal(free.params, clipped.params) == unit


@every
def test_weights_by_samples(name: str) -> None:
    fed = digits_fed(5)
    if lookup(name).facts.uniform:
        with pytest.raises(ValueError, match="only defined for 'uniform'"):
            train(name, fed, small_net(), weights="samples")
    else:
        uniform, samples = (train(name, fed, small_net(), weights=w) for w in ("uniform", "samples"))
        assert not torch.equal(uniform.params, samples.params)


@every
def test_order_in_a_cohort_is_irrelevant(name: str) -> None:
    fed = digits_fed(5)
    runs = [train(name, fed, small_net(), cohort=c) for c in ([[0, 2, 4]] * 3, [[4, 0, 2], [2, 4, 0], [4, 2, 0]])]
    assert torch.equal(runs[0].params, runs[1].params)


# What a method achieves -----------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("kind", ["convex", pytest.param("neural", marks=pytest.mark.slow)])
def test_defaults_lower_the_loss(name: str, kind: str) -> None:
    fed = digits_fed(10, concentration=0.5)
    model = (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) if kind == "convex" else small_net(32)
    run = train(name, fed, model, rounds=30, cohort=5, local_steps=8, batch_size=16)
    assert run.history[-1]["test_loss"] < 0.93 * np.log(10), "ten classes at chance have log 10"


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
def test_minimiser_is_a_fixed_point_exactly_if_declared(name: str) -> None:
    """Different quadratics, K = 10, exact gradients, all clients, start at x*: does the method stay at x*?"""
    fed = linear_clients([12] * 3, 8, seed=2, shift=False)
    star = minimiser(fed)
    hp = {"lr": 0.1} if "lr" in {f.name for f in dataclasses.fields(lookup(name))} else {}
    algo = fk.algorithm(name, **(hp | FIXED_POINT.get(name, {})))
    model = nn.Sequential(nn.Flatten(), linear_model(8, bias=False, x0=star))  # a Sequential shows its features
    run = train(
        algo, fed, model, rounds=100, cohort=3, local_steps=10, batch_size=None,
        loss=half_square, dtype=torch.float64,
    )  # fmt: skip
    away = float(np.linalg.norm(run.params.numpy() - star))
    if lookup(name).facts.exact:
        assert away < 1e-3, f"{away:.2g} from the minimiser"
    else:
        assert away > 5e-3, f"only {away:.2g} from the minimiser, though exact=False"


def settings_of(words: list[str], name: str) -> fk.Algorithm:
    """A method from `lr=0.1 base=sgd`."""
    kinds = {field.name: field.default for field in dataclasses.fields(lookup(name))}
    values: dict[str, Any] = {}
    for key, text in (word.split("=") for word in words):
        if isinstance(kinds[key], bool):
            values[key] = text == "true"
            continue
        values[key] = text if isinstance(kinds[key], str) else int(text) if text.isdigit() else float(text)
    return fk.algorithm(name, **values)


@pytest.mark.parametrize(("name", "claim"), [pytest.param(n, c, id=f"{n} {c}") for n in NAMES for c in lookup(n).facts.same])
def test_methods_declared_the_same_are_the_same(name: str, claim: str) -> None:
    """With partial participation and mini-batches, both end with the same weights, which are not the initial ones."""
    mine, _, theirs = claim.partition(" -> ")
    other, *words = theirs.split()
    fed = digits_fed(6)
    kw = {"rounds": 5, "cohort": 4, "dtype": torch.float64}
    runs = [train(algo, fed, small_net(), **kw) for algo in (settings_of(mine.split(), name), settings_of(words, other))]
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(runs[0].params, make_flat(small_net(), 0, "cpu", torch.float64).vector())


# The declarations themselves ------------------------------------------------------------------------------------------


@every
def test_declaration_is_complete(name: str) -> None:
    cls = lookup(name)
    facts = cls.facts
    assert facts.paper
    assert facts.family
    assert facts.solves
    assert facts.gradients >= 1
    assert cls.__doc__
    assert len(cls.__doc__.split("\n\n")[0]) <= 400
    plan = Plan(N=4, S=4, K=2, T=4, layers=Layers([3, 2]))
    server, _ = fk.algorithm(name).plan(plan).init(torch.zeros(5))
    assert set(facts.sends) <= set(server._fields)
    for hook in [hook for hook in SERVER_HOOKS if hasattr(cls, hook)]:
        kind = received(cls, hook)
        assert kind is not None, f"{hook} does not say what it receives"
        assert set(kind._fields) == set(facts.sends)  # type: ignore[attr-defined]
    assert set(facts.owns) <= set(server._fields)
    up = trial_upload(fk.algorithm(name).plan(plan), "client", plan.layers, torch.float32)
    assert set(facts.tracked) <= set(up._fields)
    for field in dataclasses.fields(cls):
        assert field.metadata.get("doc"), f"{field.name} has no description"
    assert "x" in server._fields


@every
def test_bad_hyperparameters_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown hyper-parameter 'lrr'"):
        fk.algorithm(name, lrr=1)
    for field in dataclasses.fields(lookup(name)):
        bad: Any = "nonsense"
        with pytest.raises(ValueError, match=field.name):
            fk.algorithm(name, **{field.name: bad})
        if field.metadata.get("above") == 0:
            for bad in (0, -1.0, float("nan"), float("inf")):
                with pytest.raises(ValueError, match=field.name):
                    fk.algorithm(name, **{field.name: bad})


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
