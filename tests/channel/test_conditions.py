"""Conditions of the channel as laws: neutral settings change no bits, all engines agree, a kill loses nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

import fedkeel as fk
from fedkeel.channel import validity
from fedkeel.channel.accounting import NONE, POISSON, REPLACE, Accountant, Sampling, noise_for
from fedkeel.channel.draws import generator
from fedkeel.channel.link import Link
from fedkeel.channel.words import as_text, conditions
from fedkeel.core.flat import Layers
from fedkeel.core.records import exchanges_of
from tests.golden.tasks import clients as golden_clients
from tests.golden.tasks import digests, finished_run
from tests.tasks import digits_fed, full_only, small_net

NEUTRAL = {
    "privacy": "gaussian:clip=1e30,noise=0",
    "uplink": "topk:1.0",
    "aggregation": "trimmed:0.0",
    "attack": "sign-flip:0.0",
}
ACTIVE = [
    {"privacy": "gaussian:clip=0.5,noise=0.8"},
    {"privacy": "gaussian:clip=0.5,noise=0.3,quantile=0.5"},
    {"privacy": "gaussian:clip=0.5,noise=0.1,where=client"},
    {"uplink": "topk:0.05+quantize:4"},
    {"uplink": "randk:0.2+sign"},
    {"uplink": "lowrank:2"},
    {"aggregation": "median", "attack": "alie:0.3"},
    {"aggregation": "multi-krum:0.2", "attack": "noise:0.3"},
    {"aggregation": "geometric-median", "attack": "label-flip:0.3"},
]


def run(method="scaffold", engine="sequential", **settings):
    common = {"rounds": 3, "cohort": 6, "local_steps": 2, "seed": 3, "progress": False, "evaluate_every": 0}
    return fk.train(small_net(), digits_fed(), method, engine=engine, **common | settings)


@pytest.mark.parametrize("method", fk.algorithms())
def test_neutral_settings_leave_the_bits_as_they_are(method, monkeypatch):
    """Each neutral condition that is valid for the method, all at once. Privacy goes through its own sums."""
    made = fk.algorithm(method)
    valid = {name: text for name, text in NEUTRAL.items() if validity.CONDITIONS[name](made) is None}
    import tests.golden.tasks as golden

    before = digests(finished_run(method, "dense", torch.float32))
    monkeypatch.setattr(golden, "COMMON", golden.COMMON | valid)
    assert digests(finished_run(method, "dense", torch.float32)) == before


@pytest.mark.parametrize("settings", ACTIVE, ids=lambda s: "-".join(s.values()))
def test_engines_and_a_resumed_run_have_the_same_bits(settings, tmp_path):
    whole = run(**settings)
    assert torch.equal(whole.params, run(engine="processes", workers=2, **settings).params)
    run(**settings, rounds=2, out=tmp_path / "x")
    resumed = run(**settings, out=tmp_path / "x", resume=True)
    assert torch.equal(whole.params, resumed.params)
    for a, b in zip(whole.history, resumed.history, strict=True):
        assert (a["up_bytes"], a.get("epsilon")) == (b["up_bytes"], b.get("epsilon"))
    assert not torch.equal(whole.params, run().params)


def test_methods_whose_server_looks_at_single_uploads_are_refused():
    refused = {name for name in fk.algorithms() if validity.why_not_privacy(fk.algorithm(name))}
    assert {"gradma", "gradma-s", "fednova"} <= refused
    for name in ("gradma", "gradma-s"):
        with pytest.raises(ValueError, match="looks at each client's dx"):
            run(name, privacy="gaussian:noise=1")
        with pytest.raises(ValueError, match="looks at each client's dx"):
            run(name, aggregation="median")
    for wrong in (
        {"privacy": "gaussian:noise=1", "weights": "samples"},
        {"privacy": "gaussian:noise=1", "aggregation": "median"},
        {"privacy": "gaussian:noise=1,where=client", "uplink": "sign"},
        {"aggregation": "median", "weights": "samples"},
        {"aggregation": "trimmed:0.7"},
        {"aggregation": "medain"},
        {"uplink": "sign+topk:0.1"},
        {"uplink": "lowrank:2+sign"},
        {"attack": "sign-flip:fractoin=0.2"},
        {"privacy": fk.SignFlip(0.2)},
        {"privacy": "gaussian:clip=1"},
    ):
        with pytest.raises(ValueError, match="|".join(wrong)):
            run("fedavg", **wrong)


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("aggregation", fk.TrimmedMean(0.2), "trimmed:0.2"),
        ("uplink", [fk.TopK(0.01), fk.Quantize(bits=4)], "topk+quantize:4"),
        ("attack", fk.SignFlip(fraction=0.3), "sign-flip:0.3"),
        ("privacy", fk.Privacy(clip=2, noise=0.8, scales={"dc": 0.1}), "gaussian:clip=2.0,noise=0.8,scales=dc=0.1"),
        ("privacy", {"clip": 2, "epsilon": 8}, "gaussian:clip=2.0,epsilon=8.0"),
    ],
)
def test_objects_and_texts_mean_the_same(setting, value, text):
    assert as_text(setting, value) == text == as_text(setting, text)
    assert conditions(setting, text) == conditions(setting, value)


# Privacy --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_noise_on_sums_has_the_stated_deviation_and_is_the_same_for_mean_and_share():
    """Two runs differ in the noise only, because every upload is clipped to almost nothing."""
    fed = golden_clients()
    model = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 100))  # noqa: E731
    common = {"rounds": 1, "cohort": 3, "progress": False, "engine": "sequential", "seed": 1}
    start = fk.train(model, fed, "scaffold", privacy=fk.Privacy(clip=1e-9, noise=0), **common)
    noisy = fk.train(model, fed, "scaffold", privacy=fk.Privacy(clip=1e-9, noise=1e9), **common)
    x = (noisy.params - start.params).double() * 3  # the noise on the sum of dx, standard deviation 1
    c = noisy.server.c.double() * 6
    for z in (x, c):
        assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
        assert abs(float(z.std()) - 1) < 5 / (2 * len(z)) ** 0.5
    assert abs(np.corrcoef(x, c)[0, 1]) < 5 / len(x) ** 0.5  # fields have noise of their own
    # feddyn uses both the mean and the share of dx: x = x + avg - h / alpha with h = -alpha share.
    start = fk.train(model, fed, "feddyn", privacy=fk.Privacy(clip=1e-9, noise=0), **common)
    dyn = fk.train(model, fed, "feddyn", privacy=fk.Privacy(clip=1e-9, noise=1e9), **common)
    drawn = -6 * dyn.server.h.double() / dyn.algorithm.alpha  # the noise, from the share
    torch.testing.assert_close((dyn.params - start.params).double(), drawn / 3 + drawn / 6, atol=1e-4, rtol=1e-4)


def test_uploads_are_clipped_over_all_fields():
    made = run("scaffold", rounds=1, cohort=1, privacy="gaussian:clip=0.01,noise=0")
    start = fk.train(
        small_net(), digits_fed(), "fedavg", rounds=1, seed=3, progress=False, privacy="gaussian:clip=1e-12,noise=0"
    )
    moved, c = made.params - start.params, made.server.c * 20
    assert float((moved.square().sum() + c.square().sum()).sqrt()) == pytest.approx(0.01, rel=1e-3)


def test_epsilon_is_that_of_dp_accounting_and_of_the_published_table():
    import dp_accounting as dp
    from dp_accounting import rdp

    fixed = Accountant(Sampling(REPLACE, 100, 10), 3.0, 1e-5)
    poisson = Accountant(Sampling(POISSON, 60000, q=256 / 60000), 1.1, 1e-5)
    every = Accountant(Sampling(NONE, 100), 6.0, 1e-5)
    for _ in range(50):
        fixed.spend(range(10), 1)
        every.spend([1, 2], 2)
    theirs = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.5)), 50)
    assert fixed.epsilon() == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
    assert every.epsilon() == pytest.approx(dp.get_epsilon_gaussian(3.0 / 100**0.5, 1e-5), rel=1e-9)
    # TensorFlow Privacy's MNIST tutorial: noise 1.1, batch 256, 60 epochs, delta 1e-5: epsilon 3.0 (classic conversion)
    for _ in range(60 * 60000 // 256):
        poisson.spend([], 1)
    assert 2.3 < poisson.epsilon() < 3.01


@pytest.mark.slow
def test_epsilon_finds_the_noise_and_a_budget_stops_the_run():
    planned = Accountant(Sampling(REPLACE, 20, 6), 0.0, 1e-5)
    for _ in range(3):
        planned.spend(range(6), 1)
    noise = noise_for(4.0, planned)
    assert (
        dataclasses.replace(planned, noise=noise).epsilon() <= 4 < dataclasses.replace(planned, noise=noise * 0.99).epsilon()
    )
    found = run("fedavg", privacy=fk.Privacy(epsilon=4.0))
    assert [row["epsilon"] for row in found.history] == sorted(row["epsilon"] for row in found.history)
    assert 3.9 < found.history[-1]["epsilon"] <= 4
    assert found.summary()["final_train_loss"] is None
    stopped = run("fedavg", rounds=9, privacy=fk.Privacy(noise=noise, epsilon=4.0))
    assert len(stopped.history) == 3
    with pytest.raises(ValueError, match="spent before the first round"):
        run("fedavg", privacy=fk.Privacy(noise=0.1, epsilon=1))


def test_surveys_and_warm_ups_cost_privacy():
    plain, surveys, warms = (
        run(name, privacy="gaussian:noise=4").history[-1]["epsilon"] for name in ("fedavg", "mime", "padamfed")
    )
    assert surveys > plain
    assert warms > plain


def test_the_clip_follows_the_quantile():
    made = run("fedavg", rounds=40, cohort=20, privacy="gaussian:clip=20,noise=0,quantile=0.5")
    clips = [row["clip_norm"] for row in made.history]
    assert clips[0] < 20
    assert clips[-1] < 3


# Compression ----------------------------------------------------------------------------------------------------------

UPLINKS = [
    "topk:0.01",
    "topk:0.3",
    "topk:1.0+quantize:8",
    "randk:0.1",
    "topk:0.05+quantize:4",
    "randk:0.2+sign",
    "sign",
    "lowrank:3",
]


@pytest.mark.parametrize("text", UPLINKS)
def test_counted_bytes_are_packed_bytes_and_unpack_to_the_same_numbers(text):
    layers = Layers([20 * 30, 30, 40], shapes=[(20, 30), (30,), (40,)])
    uplink = Link(conditions("uplink", text), layers)
    v = torch.randn(3, 670, generator=torch.Generator().manual_seed(0))
    draw = lambda i: generator(0, "test", i)  # noqa: E731
    arrived = uplink.send(v, [draw(i) for i in range(3)])
    assert bool(((arrived - v).norm(dim=1) <= v.norm(dim=1) * (1 + 1e-6)).all())
    for i in range(3):
        data = uplink.pack(v[i], draw(i))
        assert len(data) == uplink.nbytes(4)
        torch.testing.assert_close(uplink.unpack(data, torch.float32, draw(i)), arrived[i], rtol=1e-6, atol=1e-7)


def test_compressors_equal_torch_numpy_and_scipy():
    layers, rng = Layers([600], shapes=[(20, 30)]), generator(0)
    v = torch.randn(1, 600, generator=torch.Generator().manual_seed(0))
    sent = lambda text: Link(conditions("uplink", text), layers).send(v, [rng])[0]  # noqa: E731
    quantised = torch.fake_quantize_per_tensor_affine(v[0], float(v.abs().max()) / 7, 0, -7, 7)
    torch.testing.assert_close(sent("quantize:4"), quantised)
    largest = np.argsort(-np.abs(v[0].numpy()))[:60]
    assert set(sent("topk:0.1").nonzero().flatten().tolist()) == set(largest.tolist())
    torch.testing.assert_close(sent("sign"), torch.from_numpy(np.sign(v[0].numpy()) * np.abs(v.numpy()).mean()))
    matrix = np.outer(np.arange(20.0), np.ones(30)) + np.outer(np.ones(20), np.arange(30.0))  # of rank 2
    v = torch.from_numpy(matrix).float().reshape(1, -1)
    torch.testing.assert_close(sent("lowrank:2"), v[0], atol=1e-3, rtol=1e-4)


def test_error_feedback_sends_everything_in_the_end():
    """With one client and constant gradients, what the server has got plus what the client keeps is the whole sum."""
    x = np.ones((4, 5), np.float32)
    fed = fk.Federation.from_arrays([(x, np.zeros((4, 1), np.float32))])
    model = lambda: torch.nn.Linear(5, 1, bias=False)  # noqa: E731
    common = {"rounds": 8, "cohort": 1, "local_steps": 1, "progress": False, "engine": "sequential", "batch_size": "all"}
    linear = lambda output, y: output.mean()  # noqa: E731
    plain = fk.train(model, fed, "fedavg", loss=linear, **common)
    packed = fk.train(model, fed, "fedavg", loss=linear, uplink="topk:0.2", **common)
    lost = float((plain.params - packed.params).abs().max())
    assert 0 < lost <= 0.1 * 5 + 1e-6  # at most five steps of 0.1 wait at the client


# Attacks --------------------------------------------------------------------------------------------------------------


def test_attacks_follow_their_papers():
    z = torch.randn(10, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bad = torch.tensor([True] * 3 + [False] * 7)
    rng = generator(0)
    honest = z[~bad].numpy()
    np.testing.assert_allclose(fk.SignFlip(0.3).upload(z, bad, rng), -z[bad])
    np.testing.assert_allclose(fk.InnerProduct(0.3, scale=0.5).upload(z, bad, rng), -0.5 * honest.mean(0))
    far = stats.norm.ppf((10 - 3 - (10 // 2 + 1 - 3)) / (10 - 3))  # Baruch et al., algorithm 3
    np.testing.assert_allclose(fk.ALIE(0.3).upload(z, bad, rng), honest.mean(0) - far * honest.std(0))
    np.testing.assert_allclose(fk.ModelReplacement(0.3).upload(z, bad, rng), 10 / 3 * z[bad])
    assert stats.kstest(fk.RandomUpload(0.3, deviation=2.0).upload(z, bad, rng).flatten() / 2, "norm").pvalue > 1e-4


def test_flipped_labels_are_those_of_the_attackers_only():
    fed = digits_fed()
    attack = fk.LabelFlip(0.25)
    who = attack.attackers(0, 20)
    from fedkeel.channel.attacks import flipped

    wrong = flipped(fed, who)
    assert len(who) == 5
    for client in range(20):
        same = torch.equal(wrong[client].y, fed[client].y)
        assert same != (client in who)
        if client in who:
            assert torch.equal(wrong[client].y, 9 - fed[client].y)


def test_second_moments_are_found_to_be_never_negative():
    for name, field in (("fedlada", "v_hat"), ("fed-ams", "v"), ("fafed", "v")):
        method = fk.algorithm(name)
        assert validity.never_negative(method, exchanges_of(method)[-1]) == {field}
    assert full_only("scaffold") is False


@pytest.mark.parametrize("attack", ["label-flip:0.5", "model-replacement:fraction=0.5,scale=1"])
def test_attackers_train_on_their_wrong_labels(attack):
    """With one client per round, the run of an attacker differs and that of an honest client does not."""
    who = conditions("attack", attack)[0].attackers(3, 20)
    honest = next(i for i in range(20) if i not in who)
    for client, differs in ((who[0], True), (honest, False)):
        alone = {"rounds": 1, "cohort": [[client]]}
        assert torch.equal(run("fedavg", **alone).params, run("fedavg", attack=attack, **alone).params) != differs


# Downlink -------------------------------------------------------------------------------------------------------------


def test_clients_start_from_the_rounded_model(tmp_path):
    settings = {"downlink": fk.Quantize(4), "rounds": 3}
    rounded = run(**settings)
    d = len(rounded.params)
    assert {row["down_bytes"] for row in rounded.history} == {2 * (4 + -(-d * 4 // 8))}  # x and c, and a scale for each
    assert torch.equal(rounded.params, run(engine="processes", workers=2, **settings).params)
    run(**settings | {"rounds": 2}, out=tmp_path / "x")
    assert torch.equal(rounded.params, run(**settings, out=tmp_path / "x", resume=True).params)
    assert not torch.equal(rounded.params, run().params)
    fine = run(downlink="quantize:16")
    torch.testing.assert_close(fine.params, run().params, atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match="clients that were absent need all numbers"):
        run(downlink="topk:0.1")


def test_virtual_seconds_count_the_bytes_that_travel():
    ends = [run("fedavg", rounds=1, clock="phones", **z).history[0]["timeline"] for z in ({}, {"uplink": "sign"})]
    plain, packed = ([end for _, _, end, _ in one] for one in ends)
    assert all(a > b for a, b in zip(plain, packed, strict=True))


# Weights by samples ---------------------------------------------------------------------------------------------------


def test_capped_samples_weigh_clients_and_keep_the_sum_within_the_clip():
    """By hand: sum of min(n, cap) / cap times dx, divided by the expected weight of the cohort."""
    rng = np.random.default_rng(0)
    sizes = [4, 9, 30, 12]
    fed = fk.Federation.from_arrays([(rng.normal(size=(n, 3)).astype("f"), rng.integers(0, 2, n)) for n in sizes])
    model = lambda: torch.nn.Linear(3, 2)  # noqa: E731
    common = {"rounds": 1, "local_steps": 2, "batch_size": "all", "progress": False, "engine": "sequential"}
    start = fk.train(model, fed, "fedavg", privacy="gaussian:clip=1e-30,noise=0", cohort=1, **common).params
    dx = [fk.train(model, fed, "fedavg", cohort=[[i]], **common).params - start for i in range(4)]
    u = np.minimum(sizes, 10) / 10
    made = fk.train(
        model, fed, "fedavg", cohort=[[0, 2]], weights="samples", privacy="gaussian:clip=9,noise=0,cap=10", **common
    )
    wanted = (u[0] * dx[0] + u[2] * dx[2]) / (2 / 4 * u.sum())
    torch.testing.assert_close(made.params - start, wanted.float(), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="cap is for weights = 'samples'"):
        run("fedavg", privacy="gaussian:noise=1,cap=10")
