"""Virtual time: how long clients need, who is late, and asynchronous runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.core.algorithm import Plan
from fedkeel.engine.events import EventQueue, check_asynchronous
from fedkeel.engine.fleet import PROFILES, SPEEDS, Fleet
from fedkeel.engine.objective import make_flat
from fedkeel.engine.pace import Pace, operations_per_sample
from fedkeel.engine.participation import Schedule, from_text
from fedkeel.engine.settings import Settings
from tests.golden import tasks as golden
from tests.processes import forked, kill, until
from tests.tasks import digits_fed, full_only, same_record, small_net

FED = digits_fed(clients=12)
SMALL = {"rounds": 6, "cohort": 4, "local_steps": 2, "batch_size": 20, "engine": "sequential", "progress": False}
ASYNC = {"buffer": 2, "concurrency": 5, "clock": "phones"}


def train(name: str | fk.Algorithm = "scaffold", **kw: Any) -> fk.Run:
    return fk.train(small_net(), FED, name, **(SMALL | kw))


def same(a: fk.Run, b: fk.Run) -> None:
    assert torch.equal(a.params, b.params)
    assert same_record(a.server, b.server)
    assert all(same_record(a.clients[i], b.clients[i]) for i in range(len(a.clients)))
    assert str([{**row, "seconds": 0} for row in a.history]) == str([{**row, "seconds": 0} for row in b.history])


def fleet(folder: Path, **values: Any) -> str:
    values = {"speed": 1e6, "up": 1e4, "down": 2e4, "latency": 0.5} | values
    (folder / "fleet.toml").write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return str(folder / "fleet.toml")


# Laws for every method ------------------------------------------------------------------------------------------------


def can_run_asynchronously(name: str) -> bool:
    layers = make_flat(golden.dense, 0, "cpu", None).layers
    planned = fk.algorithm(name).plan(Plan(N=6, S=6, K=4, T=3, layers=layers))
    try:
        check_asynchronous(planned, layers)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", fk.algorithms())
def test_neutral_time_leaves_the_bits_of_every_method(name: str) -> None:
    """A clock alone changes nothing. Neither do zero delays with buffer = concurrency = cohort."""
    cohort = golden.CLIENTS if full_only(name) else golden.COHORT
    settings = golden.COMMON | golden.SETTINGS["dense"] | {"cohort": cohort, "dtype": torch.float32}
    bits = golden.digests(golden.finished_run(name, "dense", torch.float32))
    assert golden.digests(fk.train(golden.dense, golden.clients(), name, clock="phones", **settings)) == bits
    zero = settings | {"buffer": cohort, "concurrency": cohort}
    if can_run_asynchronously(name):
        assert golden.digests(fk.train(golden.dense, golden.clients(), name, **zero)) == bits
    else:
        with pytest.raises(ValueError, match=f"buffer is not allowed with {name}: its"):
            fk.train(golden.dense, golden.clients(), name, **zero)


def test_many_methods_can_run_asynchronously() -> None:
    """The law above would hold if all were refused."""
    able = {name for name in fk.algorithms() if can_run_asynchronously(name)}
    assert {"fedavg", "scaffold", "fedams", "mifa", "fedlada", "padamfed"} <= able
    assert not {"gradma", "mime"} & able
    assert len(able) > 30


def test_equal_speeds_with_buffers_are_rounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fed = fk.Federation.from_arrays([(rng.normal(size=(20, 64)).astype("f"), rng.integers(0, 10, 20)) for _ in range(9)])
    equal = {**SMALL, "clock": fleet(tmp_path), "cohort": 3}
    rounds = fk.train(small_net(), fed, "scaffold", **equal)
    buffered = fk.train(small_net(), fed, "scaffold", **equal, buffer=3, concurrency=3)
    assert torch.equal(rounds.params, buffered.params)
    ends = [[row["clock_seconds"] for row in run.history] for run in (rounds, buffered)]
    assert ends[0] == pytest.approx(ends[1])
    assert all(row["most_stale"] == 0 for row in buffered.history)


@pytest.mark.parametrize("settings", [{"clock": "phones", "deadline": 0.2}, {"clock": "phones", "overselect": 2.0}, ASYNC])
def test_engines_and_resumed_runs_agree(settings: dict[str, Any], tmp_path: Path) -> None:
    run = train(**settings)
    same(run, train(**settings, engine="processes", workers=2))
    train(**settings, rounds=3, out=tmp_path)
    same(run, train(**settings, out=tmp_path, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedams", "mifa"])
def test_asynchronous_runs_agree_after_kills(name: str, tmp_path: Path) -> None:
    long: dict[str, Any] = ASYNC | {"rounds": 40}
    run, rows = train(name, **long), tmp_path / "metrics.jsonl"
    for enough in (3, 11, 25):
        with forked(lambda: train(name, **long, out=tmp_path, resume=True)) as child:
            assert until(lambda n=enough: rows.exists() and rows.read_text().count("\n") >= n, seconds=60)
            kill(child)
    same(run, train(name, **long, out=tmp_path, resume=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's own
def test_an_asynchronous_run_has_the_same_bits_on_ray() -> None:
    same(train(**ASYNC), train(**ASYNC, engine="ray", workers=2))


def test_batch_statistics_pass_through_neutral_buffers() -> None:
    settings = golden.COMMON | golden.SETTINGS["convolutional"] | {"cohort": 3, "dtype": torch.float32}
    for name in ("fedavg", "fedbn", "scaffold"):
        run = fk.train(golden.convolutional, golden.clients(), name, buffer=3, concurrency=3, **settings)
        assert golden.digests(run) == golden.digests(golden.finished_run(name, "convolutional", torch.float32))


# Seconds --------------------------------------------------------------------------------------------------------------


def test_seconds_follow_from_gradients_and_bytes(tmp_path: Path) -> None:
    """By hand, for a linear model: 2 latencies, 4 d bytes each way, and the operations of K batches."""
    sizes = (8, 20)
    fed = fk.Federation.from_arrays([(np.zeros((n, 5), "f"), np.zeros(n, int)) for n in sizes])
    model, d = torch.nn.Linear(5, 3), 5 * 3 + 3
    forward_and_weight_gradient = 2 * 5 * 3 + 2 * 5 * 3  # the gradient of the inputs is not needed
    assert operations_per_sample(make_flat(model, 0, "cpu", None), fed) == forward_and_weight_gradient
    clock = fleet(tmp_path, speed=1000, up=10, down=20, latency=0.25)
    run = fk.train(model, fed, "fedavg", clock=clock, rounds=1, cohort=2, local_steps=3, batch_size=8, progress=False)
    samples = (8 * 3, 20)  # passes over 8 samples; batches of 8, 8 and 4
    expected = [0.5 + 4 * d / 20 + 4 * d / 10 + n * forward_and_weight_gradient / 1000 for n in samples]
    assert [end for _, _, end, _ in run.history[0]["timeline"]] == pytest.approx(expected)
    assert run.history[0]["clock_seconds"] == pytest.approx(max(expected))


def test_methods_with_more_gradients_and_bytes_take_longer(tmp_path: Path) -> None:
    flat = make_flat(small_net(), 0, "cpu", None)

    def pace(name: str) -> Pace:
        algo = fk.algorithm(name).plan(Plan(N=12, S=4, K=2, T=6, layers=flat.layers))
        return Pace(Fleet(fleet(tmp_path)), 0, algo, flat, FED, 20)

    assert pace("fedavg").gradients["client"] == (1, 0)
    assert pace("fedsam").gradients["client"] == (2, 0)
    assert pace("scaffold").up["client"][0] == 2 * pace("fedavg").up["client"][0] == 8 * flat.d
    assert pace("mime").gradients["survey"][1] == 1  # on all data


def test_spread_is_that_of_the_logarithm(tmp_path: Path) -> None:
    of = Fleet(fleet(tmp_path, speed_spread=0.7)).clients(seed=1, N=20_000)
    assert np.log(of["speed"]).std() == pytest.approx(0.7, rel=0.03)
    assert np.median(of["speed"]) == pytest.approx(1e6, rel=0.05)
    assert (of["up"] == 1e4).all()


def test_every_profile_has_its_source() -> None:
    for name, values in PROFILES.items():
        assert values["source"]
        assert Fleet(name).median == {key: values[key] for key in SPEEDS}


# Rounds with a clock --------------------------------------------------------------------------------------------------


def test_the_late_are_dropped_at_the_deadline() -> None:
    free = train(clock="phones", cohort=12, rounds=3)
    seconds = sorted(end - begin for _, begin, end, _ in free.history[0]["timeline"])
    deadline = (seconds[7] + seconds[8]) / 2
    run = train(clock="phones", cohort=12, rounds=3, deadline=deadline)
    assert [(row["clients"], row["late"], row["dropped"]) for row in run.history] == [(8, 4, 0)] * 3
    assert [row["clock_seconds"] for row in run.history] == pytest.approx([deadline, 2 * deadline, 3 * deadline])
    assert free.history[0]["clock_seconds"] == pytest.approx(seconds[-1])
    in_time = [client for client, *_, used in run.history[0]["timeline"] if used]
    assert torch.equal(run.params, train(cohort=[in_time] * 3, rounds=3).params)


def test_a_round_in_which_all_are_late_changes_nothing() -> None:
    run = train(clock="phones", rounds=2, deadline=1e-6)
    assert [(row["clients"], row["late"]) for row in run.history] == [(0, 4)] * 2
    assert run.history[-1]["clock_seconds"] == pytest.approx(2e-6)


def test_overselection_takes_the_first_of_more() -> None:
    run = train(clock="phones", overselect=2.0)
    for row in run.history:
        ends = sorted((end, client) for client, _, end, _ in row["timeline"])
        assert (row["clients"], row["late"], len(ends)) == (4, 4, 8)
        assert row["clock_seconds"] == ends[3][0]
    assert run.history[-1]["clock_seconds"] < train(clock="phones").history[-1]["clock_seconds"]


def test_a_trace_counts_virtual_seconds(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("client,from,to\n3,10,1000\n5,20,1000\n")
    run = train(clock="phones", participation=f"trace:file={tmp_path / 'visits.csv'}", rounds=3)
    assert run.history[0]["came"] == [3]
    assert run.history[0]["timeline"][0][1] == 10, "the server waits for the first client"


def test_the_timeline_draws_every_work() -> None:
    run = train(clock="phones", overselect=2.0)
    (axes,) = run.timeline().axes
    assert len(axes.patches) == sum(len(row["timeline"]) for row in run.history) == 48
    with pytest.raises(ValueError, match="no clock"):
        train(rounds=1).timeline()


def test_tables_have_hours_to_the_target() -> None:
    from fedkeel.study.report.table_text import to_target_text
    from fedkeel.study.results.numbers import Outcome, summarise

    histories = [train("fedavg", clock="phones", seed=seed).history for seed in (0, 1)]
    least = min(max(row["test_accuracy"] for row in history) for history in histories)
    row = summarise("fedavg", [Outcome("fedavg", seed, z) for seed, z in enumerate(histories)], [least, 2.0], 6)
    reached = [next(r["clock_seconds"] for r in z if r["test_accuracy"] >= least) / 3600 for z in histories]
    assert row["hours_to_target"] == pytest.approx(sum(reached) / 2)
    assert row["hours_to_second"] is None
    assert to_target_text(row, "hours", "second").startswith(">")


# Asynchrony -----------------------------------------------------------------------------------------------------------


def queue(buffer: int, concurrency: int, seconds: list[float], N: int | None = None) -> EventQueue:
    from fedkeel.engine.client_work import Exchange

    fed = fk.Federation.from_arrays([(np.zeros((2, 1), "f"), np.zeros(2, int))] * (N or len(seconds)))

    def plan(version: int, ids: list[int], turn: int) -> Exchange:
        return Exchange("client", version, ids, [1] * len(ids), {}, None, torch.zeros(0))

    return EventQueue(
        buffer, concurrency, Schedule(from_text(None), 0, 1, fed), plan, lambda e: np.array([seconds[i] for i in e.ids])
    )


def test_events_of_three_clients_by_hand() -> None:
    """Everybody works all the time. Client 0 needs 2 s, client 1 needs 3 s, client 2 needs 7 s; a step takes 1 upload."""
    one, events = queue(1, 3, [2.0, 3.0, 7.0]), []
    for _ in range(7):
        (start,) = one.step()
        events.append((one.now, start.client, start.version, start.begins))
    # Client 0 ends at 2, 4 and 6. At 6 client 1 ends, too: it began before client 0's third work.
    assert events == [
        (2, 0, 0, 0),
        (3, 1, 0, 0),
        (4, 0, 1, 2),
        (6, 1, 2, 3),
        (6, 0, 3, 4),
        (7, 2, 0, 0),
        (8, 0, 5, 6),
    ]


def test_a_small_federation_cannot_deadlock() -> None:
    one = queue(3, 3, [1.0, 1.0, 1.0])
    assert [len(one.step()) for _ in range(4)] == [3, 3, 3, 3]
    one = queue(3, 1, [1.0, 2.0, 4.0])
    assert [sorted(start.client for start in one.step()) for _ in range(2)] == [[0, 1, 2]] * 2
    assert one.now == 14


def test_fedbuff_by_hand() -> None:
    """FedAvg with a buffer: the step is the sum of s(tau) dx / B, each dx from the model of its start."""
    run = train("fedavg", **ASYNC, rounds=4, staleness=lambda tau: 1 / (1 + tau))
    models: list[Any] = [torch.cat([p.detach().flatten() for p in _initial().parameters()])]
    for t in range(4):
        models.append(train("fedavg", **ASYNC, rounds=t + 1, staleness=lambda tau: 1 / (1 + tau)).params)
        step = torch.zeros_like(models[0])
        for client, version in _versions(t):
            step += (_displacement(models[version], version, client)) / (1 + t - version) / 2
        np.testing.assert_allclose(models[t + 1] - models[t], step, rtol=1e-4, atol=1e-6)
    assert max(row["most_stale"] for row in run.history) > 0


def _initial() -> torch.nn.Module:
    from fedkeel.engine.objective import seeded

    return seeded(small_net(), 0)


def _versions(t: int) -> list[tuple[int, int]]:
    """(client, version of its start) of the uploads of server step t, from the event queue alone."""
    from fedkeel.engine.client_work import Exchange

    flat = make_flat(small_net(), 0, "cpu", None)
    pace = Pace(Fleet("phones"), 0, fk.algorithm("fedavg"), flat, FED, 20)

    def plan(version: int, ids: list[int], turn: int) -> Exchange:
        return Exchange("client", version, ids, [2] * len(ids), {}, None, torch.zeros(0))

    one = EventQueue(2, 5, Schedule(from_text(None), 0, 4, FED), plan, lambda e: pace.seconds(e, "client"))
    for _ in range(t):
        one.step()
    return [(start.client, start.version) for start in one.step()]


def _displacement(x: torch.Tensor, t: int, client: int) -> torch.Tensor:
    """dx of a client that starts from x, with the batches of round t."""
    from fedkeel.engine.client_work import ClientTask, ClientWork
    from fedkeel.engine.objective import objective

    flat = make_flat(small_net(), 0, "cpu", None)
    work = ClientWork(fk.algorithm("fedavg"), FED, objective(flat, None, 0.0, None), 0, 20, 1.0)
    down = fk.algorithm("fedavg").init(x)[0]
    with torch.no_grad():
        return work.run_client(ClientTask("client", t, client, 2, {}, 0), down, flat.read_buffers(), None).up.dx.clone()


def test_staleness_weighs_the_old() -> None:
    weights = [Settings(buffer=1, staleness=rule).freshness(3) for rule in ("sqrt", "constant", lambda tau: 0.1 * tau)]
    assert weights == pytest.approx([0.5, 1.0, 0.3])
    runs = [train("fedavg", **ASYNC, staleness=rule) for rule in ("sqrt", "constant")]
    assert not torch.equal(runs[0].params, runs[1].params)


def test_control_variates_stay_the_mean_of_the_clients(tmp_path: Path) -> None:
    """r.share is exact whatever the delays are: SCAFFOLD's c is the mean of all c_i."""
    run = train(**ASYNC, rounds=12)
    assert max(row["most_stale"] for row in run.history) > 1
    records = [run.clients[i] for i in range(12)]
    mean = sum(record.c for record in records if record is not None) / 12
    np.testing.assert_allclose(run.server.c, mean, rtol=1e-4, atol=1e-5)


def test_asynchronous_runs_are_faster_than_rounds_on_phones() -> None:
    rounds = train("fedavg", clock="phones", cohort=4, rounds=12).history[-1]
    buffered = train("fedavg", clock="phones", buffer=4, concurrency=4, rounds=12).history[-1]
    assert buffered["clock_seconds"] < rounds["clock_seconds"]


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clock": "phone"}, "unknown profile 'phone'; did you mean phones"),
        ({"clock": "none.toml"}, "none.toml"),
        ({"clock": 3}, "clock = 3 is not allowed"),
        ({"deadline": 3}, "deadline = 3.0 is not allowed without clock"),
        ({"overselect": 1.5}, "overselect = 1.5 is not allowed without clock"),
        ({"concurrency": 3}, "concurrency is not allowed without buffer"),
        ({"staleness": "constant"}, "staleness is not allowed without buffer"),
        ({"buffer": 2, "staleness": "root"}, "staleness = 'root' is not allowed"),
        ({"buffer": 13}, "buffer = 13 is not allowed; it must be at most the number of clients, 12"),
        ({"buffer": 2, "participation": "bernoulli"}, "buffer is not allowed beside"),
        ({"buffer": 2, "cohort": [[1]] * 6}, "buffer is not allowed beside"),
        ({"overselect": 2.0, "clock": "phones", "cohort": [[1]] * 6}, "overselect is not allowed beside"),
        ({"buffer": 2, "clock": "phones", "deadline": 3}, "wait for nobody"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(**settings)


def test_wrong_fleets_are_refused(tmp_path: Path) -> None:
    for values, words in (({"speed": 0}, "> 0"), ({"sped": 1}, "unknown key 'sped'"), ({"up_spread": "inf"}, "finite")):
        with pytest.raises(ValueError, match=words):
            Fleet(fleet(tmp_path, **values))
    (tmp_path / "fleet.toml").write_text("speed = 1")
    with pytest.raises(ValueError, match="up is missing"):
        Fleet(str(tmp_path / "fleet.toml"))
    assert math.isinf(Fleet(fleet(tmp_path, speed="inf")).median["speed"])
    for name in ("clock", "buffer"):
        with pytest.raises(ValueError, match="clients on other machines"):
            Settings(**{name: {"clock": "phones", "buffer": 2}[name]}).check_with(fk.algorithm("fedavg"), 20, remote=True)


def test_another_fleet_cannot_resume(tmp_path: Path) -> None:
    train(clock=fleet(tmp_path), rounds=2, out=tmp_path / "run")
    fleet(tmp_path, latency=0.7)
    with pytest.raises(ValueError, match="clock"):
        train(clock=str(tmp_path / "fleet.toml"), out=tmp_path / "run", resume=True)
