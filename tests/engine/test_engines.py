"""What the engines promise: all give the same numbers, and nothing that the caller passed is changed."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkeel as fk
from fedkeel.engine.runners import auto
from tests.tasks import digits_fed, same_record, small_net

FED = digits_fed(clients=7, concentration=0.1)
PLENTY = digits_fed(clients=4, concentration=10.0)  # no client has a last batch of one sample, which BatchNorm refuses
every = pytest.mark.parametrize("name", fk.algorithms())


def smooth_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Softplus(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 10))


def train(name: str | fk.Algorithm = "scaffold", engine: str = "sequential", **kw: Any) -> fk.Run:
    """Two rounds of one epoch: clients with more data make more steps, and most have a short last batch."""
    algorithm = fk.algorithm(name) if isinstance(name, str) else name
    partial = "allow_partial" not in {field.name for field in dataclasses.fields(algorithm)}
    settings: dict[str, Any] = {"rounds": 2, "cohort": 4 if partial else len(FED), "batch_size": 64, "engine": engine, **kw}
    model, fed = settings.pop("model", smooth_net), settings.pop("fed", FED)
    return fk.train(model, fed, algorithm, progress=False, evaluate_every=0, **settings)


def same(a: fk.Run, b: fk.Run) -> None:
    assert torch.equal(a.params, b.params)
    assert same_record(a.server, b.server)
    assert all(same_record(a.clients[i], b.clients[i]) for i in range(len(a.clients)))
    assert [row["train_loss"] for row in a.history] == [row["train_loss"] for row in b.history]


def close(a: fk.Run, b: fk.Run, atol: float = 1e-9) -> None:
    records = [(a.server, b.server)] + [(a.clients[i], b.clients[i]) for i in range(len(a.clients))]
    for one, other in records:
        assert (one is None) == (other is None)
        for x, y in zip(one or (), other or (), strict=True):
            torch.testing.assert_close(x, y, rtol=atol, atol=atol)
    for one, other in zip(a.history, b.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=atol, nan_ok=True)


# The same numbers from all engines ------------------------------------------------------------------------------------


def test_clients_of_these_tests_differ_in_their_steps() -> None:
    assert len(set((-(-FED.sizes // 64)).tolist())) >= 3
    assert any(FED.sizes % 64)


@every
def test_processes_have_the_bits_of_sequential(name: str) -> None:
    one = train(name)
    assert bool(torch.isfinite(one.params).all())
    for workers in (1, 2, 3):
        same(one, train(name, "processes", workers=workers))


@every
def test_vectorized_agrees_to_rounding(name: str) -> None:
    close(train(name, dtype=torch.float64), train(name, "vectorized", dtype=torch.float64))


OPTIONS: list[dict[str, Any]] = [
    {"weight_decay": 0.1, "clip": 0.5, "weights": "samples"},
    {"lr_decay": 0.5, "rounds": 3},
    {"batch_size": None, "local_steps": 3},
    {"batch_size": 1000, "local_steps": None, "local_epochs": 2},
    {"batch_size": 1, "local_steps": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["scaffold", "fedlada", "gradma", "mime"])
def test_engines_agree_with_other_settings(name: str, options: dict[str, Any]) -> None:
    options = {"dtype": torch.float64, **options}
    one = train(name, **options)
    same(one, train(name, "processes", workers=2, **options))
    close(one, train(name, "vectorized", **options))


@pytest.mark.parametrize("name", ["gradma", "gradma-w"])
def test_projections_agree_over_many_rounds(name: str) -> None:
    """A projection may jump where a constraint becomes active. On real data, rounding alone does not cause that."""
    options = {"dtype": torch.float64, "rounds": 12}
    close(train(name, **options), train(name, "vectorized", **options))


def test_full_gradients_of_large_clients_are_the_same_in_pieces() -> None:
    """One client has more samples than one forward pass takes, another has few."""
    data = fk.load("digits")
    fed = fk.Federation.from_arrays([(data.x[:1300], data.y[:1300]), (data.x[1300:], data.y[1300:])])
    runs = [train("mime", e, fed=fed, cohort=2, local_steps=2, dtype=torch.float64) for e in ("sequential", "vectorized")]
    close(*runs)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_many_clients_and_workers(name: str) -> None:
    """More workers than clients, and many more clients than workers."""
    fed = digits_fed(clients=60)
    for cohort, workers in ((2, 5), (50, 3)):
        same(
            train(name, fed=fed, cohort=cohort, local_steps=1),
            train(name, "processes", fed=fed, cohort=cohort, local_steps=1, workers=workers),
        )


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def test_dropout_is_the_same_in_all_processes() -> None:
    one = train(model=dropout_net)
    for workers in (1, 2, 3):
        same(one, train(engine="processes", model=dropout_net, workers=workers))
    assert not torch.equal(one.params, train(model=dropout_net, seed=1).params)


def test_dropout_differs_between_clients_and_rounds() -> None:
    """Seeded by (seed, round, client), not once for all."""
    x, y = FED[0].x[:20], FED[0].y[:20]
    fed = fk.Federation.from_arrays([(x, y), (x, y)])
    run = train("scaffold", model=dropout_net, fed=fed, cohort=2, batch_size=None, local_steps=1)
    assert not torch.equal(run.clients[0].c, run.clients[1].c)
    again = train("scaffold", model=dropout_net, fed=fed, cohort=2, batch_size=None, local_steps=1, rounds=1)
    assert not torch.equal(run.clients[0].c, again.clients[0].c)


# Normalisation --------------------------------------------------------------------------------------------------------


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 10))


def by_hand(rounds: int, lr: float) -> nn.Module:
    """FedAvg on all clients with two full-batch steps, in plain torch: parameters and buffers are averaged."""
    torch.manual_seed(0)
    model = norm_net().double()
    for _ in range(rounds):
        start = {key: z.clone() for key, z in model.state_dict().items()}
        ends = []
        for client in FED:
            model.load_state_dict(start)
            for _ in range(2):
                model.zero_grad()
                cross_entropy(model(client.x.double()), client.y).backward()
                with torch.no_grad():
                    for p in model.parameters():
                        p -= lr * p.grad
            ends.append({key: z.clone() for key, z in model.state_dict().items()})
        model.load_state_dict({key: torch.stack([end[key].double() for end in ends]).mean(0) for key in start})
    return model


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_statistics_are_averaged_and_broadcast(engine: str, rounds: int) -> None:
    state = torch.random.get_rng_state()
    expected = by_hand(rounds, lr=0.1).state_dict()
    torch.random.set_rng_state(state)
    run = train(
        fk.algorithm("fedavg", lr=0.1),
        engine,
        model=norm_net,
        rounds=rounds,
        cohort=len(FED),
        batch_size=None,
        local_steps=2,
        dtype=torch.float64,
        workers=2,
    )
    found = run.model.state_dict()
    assert int(found["2.num_batches_tracked"]) == 2 * rounds
    for key, z in expected.items():
        torch.testing.assert_close(found[key], z, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", sorted(set(fk.algorithms()) - {"fedit-adam", "fedit-adamet", "fedit-adamgt", "scaffnew"}))
def test_a_step_updates_the_statistics_once(name: str) -> None:
    """Gradients at other points, gradients on all data, and the additional terms of a method do not update the statistics.

    (fedit trains LoRA models, scaffnew draws its number of steps.)
    """
    run = train(name, model=norm_net, fed=PLENTY, cohort=len(PLENTY), rounds=1, local_steps=3, batch_size=16)
    assert int(run.model.state_dict()["2.num_batches_tracked"]) == (1 if name == "fedsgd" else 3)


def test_private_statistics_are_the_same_in_all_processes() -> None:
    one = train("fedbn", model=norm_net, fed=PLENTY, rounds=3)
    for workers in (1, 2, 3):
        same(one, train("fedbn", "processes", model=norm_net, fed=PLENTY, rounds=3, workers=workers))
    assert not torch.equal(one.clients[0].values, one.clients[1].values)


def test_models_with_buffers_are_not_vectorized() -> None:
    with pytest.raises(ValueError, match="'vectorized' cannot run this model: it has buffers"):
        train(engine="vectorized", model=norm_net)
    with pytest.raises(ValueError, match="'vectorized' cannot run this model: its dropout"):
        train(engine="vectorized", model=dropout_net)


# Seeds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes"])
def test_the_seed_determines_the_result(engine: str) -> None:
    model = smooth_net()  # the same initial weights, so that only sampling and batches can differ
    one = train(engine=engine, model=model, seed=3)
    same(one, train(engine=engine, model=model, seed=3))
    assert not torch.equal(one.params, train(engine=engine, model=model, seed=4).params)


def test_the_seed_determines_the_initial_weights() -> None:
    small = {"rounds": 1, "cohort": 1, "local_steps": 1}
    weights = [train(fk.algorithm("fedavg", lr=1e-30), seed=seed, **small).params for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2])


def test_a_round_depends_on_nothing_but_seed_and_number() -> None:
    short, long = train(rounds=2), train(rounds=4)
    assert [row["train_loss"] for row in short.history] == [row["train_loss"] for row in long.history[:2]]


def test_a_client_does_not_depend_on_the_others_of_its_round() -> None:
    a, b = train(rounds=1, cohort=[[1, 2]]), train(rounds=1, cohort=[[0, 1, 3, 5, 6]])
    assert same_record(a.clients[1], b.clients[1])


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes"])
def test_order_in_the_cohort_list_is_irrelevant(engine: str) -> None:
    same(train(engine=engine, cohort=[[0, 2, 3, 5], [1, 2, 6]]), train(engine=engine, cohort=[[5, 3, 0, 2], [6, 1, 2]]))


def test_every_client_is_drawn_equally_often() -> None:
    from fedkeel.engine.seeding import sample

    for N, S in ((20, 5), (20_000, 5)):
        drawn = [sample(0, t, N, S) for t in range(2000)]
        assert all(ids == sorted(set(ids)) and len(ids) == S for ids in drawn)
        counts = np.bincount(np.concatenate(drawn) * 20 // N, minlength=20)
        assert abs(counts - 500).max() < 6 * 500**0.5, counts


# The choice of an engine ----------------------------------------------------------------------------------------------


def estimates(run: fk.Run) -> dict[str, float]:
    assert run.why.startswith(f"expected for {len(run.history)} rounds: ")
    return {name: float(seconds) for name, seconds in re.findall(r"(\w+) ([\d.e+-]+) s", run.why)}


def test_auto_runs_small_tasks_in_this_process() -> None:
    run = train(engine="auto")
    assert run.engine == "sequential"
    assert estimates(run)["sequential"] == min(estimates(run).values())
    same(run, train())


def test_auto_does_not_choose_sequential_for_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test does not wait for the end of the run, because the choice is made before the first round."""

    def choose_and_stop(*args: Any) -> tuple[str, str]:
        choices.append(choose(*args))
        raise InterruptedError

    choices: list[tuple[str, str]] = []
    choose = auto.choose
    monkeypatch.setattr(auto, "choose", choose_and_stop)
    with pytest.raises(InterruptedError):
        train(engine="auto", rounds=100_000, cohort=7)
    engine, why = choices[0]
    assert engine != "sequential" or auto.cores() == 1, why
    assert re.search(r"vectorized [\d.e+]+ s", why)
    assert ("processes" in why) == (auto.cores() > 1)


def test_auto_ignores_a_moment_in_which_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, busy, timed = 0.001, 0.05, auto._timed

    def slow_at_first(engine: Any, store: Any, jobs: Any) -> float:
        timed(engine, store, jobs)
        calls.append(engine)
        return (busy if len(calls) <= 2 else calm) * sum(jobs.K)

    calls: list[Any] = []
    monkeypatch.setattr(auto, "_timed", slow_at_first)
    per_round = estimates(train(engine="auto", cohort=7, local_steps=3))["sequential"] / 2
    assert per_round == pytest.approx(7 * 3 * calm)


def test_auto_is_not_misled_by_one_unusual_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have very different sizes, so a step of the first client says little about the round."""
    seconds, timed = [0.004, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001], auto._timed

    def by_client(engine: Any, store: Any, jobs: Any) -> float:
        timed(engine, store, jobs)
        return sum(K * a for K, a in zip(jobs.K, seconds, strict=False))

    monkeypatch.setattr(auto, "_timed", by_client)
    per_round = estimates(train(engine="auto", cohort=7, local_steps=3))["sequential"] / 2
    assert per_round == pytest.approx(3 * sum(seconds))


def test_auto_has_the_bits_of_the_engine_that_it_chose() -> None:
    """The measurement leaves no trace, above all none in client memory."""
    run = train(engine="auto", rounds=30)
    same(run, train(engine=run.engine, rounds=30))


def test_auto_respects_what_a_model_allows() -> None:
    for model in (norm_net, dropout_net):
        assert set(estimates(train(engine="auto", model=model))) <= {"sequential", "processes"}


def test_auto_survives_a_bad_first_client() -> None:
    x = FED.x.clone()
    x[FED.rows(0, np.arange(FED.size(0)))] = torch.nan
    fed = fk.Federation(x, FED.y, FED.offsets, FED.order)
    run = train(engine="auto", fed=fed, cohort=7)
    assert [list(row["faults"]) for row in run.history] == [["0"], ["0"]]


def test_unknown_engines_are_named() -> None:
    with pytest.raises(ValueError, match="unknown name 'paralel'"):
        train(engine="paralel")


# What the caller passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes", "auto"])
def test_train_does_not_change_its_arguments(engine: str, fails: bool) -> None:
    model = smooth_net().eval()
    model[1].bias.requires_grad_(False)
    weights = {key: z.clone() for key, z in model.state_dict().items()}
    x, y = FED.x.clone(), FED.y.clone()
    threads, torch_state, numpy_state = torch.get_num_threads(), torch.get_rng_state(), np.random.get_state()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if fails:
            raise ArithmeticError
        return cross_entropy(output, target)

    torch.set_num_threads(2)
    try:
        if fails:
            with pytest.raises(fk.RoundError):
                train(engine=engine, model=model, loss=loss)
        else:
            run = train(engine=engine, model=model, loss=loss)
            assert torch.equal(run.model[1].bias, weights["1.bias"])
            assert not run.model[1].bias.requires_grad
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])
    assert torch.is_grad_enabled()
    assert all(torch.equal(z, weights[key]) for key, z in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert not any(part.training for part in model.modules())
    assert torch.equal(FED.x, x)
    assert torch.equal(FED.y, y)


def test_a_module_returned_by_a_function_is_not_changed() -> None:
    """`lambda: net` is an easy mistake. If net were trained in place, a second run would start where the first one ended."""
    model = norm_net()
    before = {key: z.clone() for key, z in model.state_dict().items()}
    first = train(model=lambda: model)
    assert all(torch.equal(z, before[key]) for key, z in model.state_dict().items())
    same(first, train(model=lambda: model))


def test_the_result_is_the_model() -> None:
    run = train(model=norm_net)
    assert torch.equal(run.params, torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]))
    assert torch.equal(run.params, run.server.x)
    run.params.zero_()
    assert bool(run.server.x.any())
    assert all(p.requires_grad for p in run.model.parameters())
    cross_entropy(run.model(FED.x[:9]), FED.y[:9]).backward()  # it can be trained further


def test_the_device_is_honoured() -> None:
    assert train(device="cpu").params.device.type == "cpu"
    for device in ("banana", "cpu:banana", "cuda:99"):
        with pytest.raises(ValueError, match=re.escape(f"device = {device!r}")):
            train(device=device)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: train(lr_decay=0.5, rounds=1100), r"lr_decay = 0.5 .* closer to 1 for 1100 rounds"),
        (lambda: train(weights=np.ones(7)), "weights = array.* 'uniform' or 'samples'"),
        (lambda: train(batch_size=0), "batch_size = 0 .* or 'all' for all local data"),
        (lambda: train(local_steps=0), "local_steps = 0 is not allowed"),
        (lambda: train(model=lambda x: x), "model: the function that makes it fails: TypeError"),
        (
            lambda: fk.algorithm("scaffold", option=np.array(["I", "II"])),
            "scaffold: option = array.* it must be 'I'",
        ),
        (lambda: fk.load(None), "data: expected a name, not NoneType"),
        (lambda: fk.load("digits").split(None, clients=3), "split: expected a name, not NoneType"),
        (lambda: fk.resume(None), "resume: expected the directory of a run, not NoneType"),
    ],
)
def test_meaningless_settings_are_refused_by_name(call: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        call()


def test_local_steps_need_no_epochs() -> None:
    same(train(local_epochs=None, local_steps=3), train(local_steps=3))


@pytest.mark.parametrize("name", ["vrl-sgd", "scaffnew", "fedpd", "fafed"])
def test_one_full_round_is_not_full_participation(name: str) -> None:
    everyone = list(range(7))
    for cohort in ([everyone, [0, 1]], [[0], [1], everyone]):  # the last cohort is beyond the two rounds
        with pytest.raises(ValueError, match=rf"{name}: a cohort of \d is not allowed; it must be all 7 clients"):
            train(fk.algorithm(name), cohort=cohort)
    train(fk.algorithm(name), cohort=[everyone, everyone, [0]])


def test_theory_uses_the_number_of_rounds_of_the_run() -> None:
    assert train(fk.algorithm("padamfed"), cohort=[[0], [1], [0, 1, 2]]).algorithm.gamma == (
        train(fk.algorithm("padamfed"), cohort=[[0], [1]]).algorithm.gamma
    )


@pytest.mark.parametrize("dtype", [torch.int64, "float64", 3])
def test_a_nonsense_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="dtype"):
        train(dtype=dtype)


def test_test_data_of_another_shape_are_refused_before_any_work() -> None:
    x, y = FED.test
    calls = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(len(target))
        return cross_entropy(output, target)

    for test in ((x[:, :, :4], y), (x, y + 5)):
        fed = fk.Federation(FED.x, FED.y, FED.offsets, FED.order, test)
        with pytest.raises(ValueError, match="test"):
            fk.train(smooth_net, fed, "fedavg", rounds=1, cohort=2, progress=False, loss=loss if test[1] is y else None)
    assert set(calls) <= {2}, "it is tried on two samples, no more"


# Cost -----------------------------------------------------------------------------------------------------------------


def round_seconds(N: int, engine: str, out: Any) -> float:
    """CPU time of the fastest of many rounds with N registered clients, one sample each."""
    x, times = torch.zeros(N, 4), []
    fed = fk.Federation(x, torch.arange(N) % 3, np.arange(N + 1), np.arange(N))
    fk.train(
        lambda: nn.Linear(4, 3),
        fed,
        "scaffold",
        rounds=200,
        cohort=10,
        local_steps=1,
        engine=engine,
        out=out,
        progress=lambda row: times.append(time.process_time()),
    )
    return float(np.diff(times).min())


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_round_does_not_cost_more_with_more_clients(tmp_path: Any, engine: str, on_disk: bool) -> None:
    few, many = (round_seconds(N, engine, tmp_path / str(N) if on_disk else None) for N in (100_000, 3_000_000))
    assert many < 1.6 * few + 0.0005, (few, many)


def test_evaluation_happens_only_in_chosen_rounds() -> None:
    def rows(every: int) -> list[bool]:
        run = fk.train(
            smooth_net, FED, "fedavg", rounds=5, cohort=2, engine="sequential", evaluate_every=every, progress=False
        )
        return [row["test_accuracy"] is not None for row in run.history]

    assert rows(1) == [True] * 5
    assert rows(2) == [False, True, False, True, True]
    assert rows(0) == [False, False, False, False, True]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler"
)
@pytest.mark.parametrize("name", ["fedavg", "fadamgt"])
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own import
def test_compiled_agrees_to_rounding(name: str) -> None:
    """The compiled gradient against one client at a time. Batches need padding, and no client is dropped."""
    fed = digits_fed(6)
    runs = [
        fk.train(
            small_net(), fed, name, rounds=3, cohort=3, local_steps=3, batch_size=16, dtype=torch.float64,
            engine=engine, progress=False,
        )
        for engine in ("sequential", "compiled")
    ]  # fmt: skip
    assert sum(row["dropped"] for row in runs[1].history) == 0
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-9, atol=1e-11)
