"""Laws of single methods of section I of docs/methods.md, beside those that every method obeys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.core.algorithm import Plan
from fedkeel.core.flat import Layers
from fedkeel.core.records import trial_upload
from fedkeel.rules.muon import in_matrices, muon_direction, newton_schulz
from fedkeel.rules.sam import unit
from fedkeel.rules.signs import packed_signs, unpacked_signs
from tests.golden import tasks as golden
from tests.tasks import half_square, linear_clients, linear_model

N, D = 5, 4
FED = linear_clients([6, 8, 10, 7, 9], D, seed=3, shift=False)
X0 = np.linspace(-1, 1, D)


def train(algo: fk.Algorithm, fed: fk.Federation = FED, x0: Any = X0, **settings: Any) -> fk.Run:
    common: dict[str, Any] = {"cohort": len(fed), "local_steps": 3, "batch_size": None, "rounds": 5}
    common |= {"loss": half_square, "engine": "sequential", "progress": False, "dtype": torch.float64} | settings
    return fk.train(linear_model(D, bias=False, x0=x0), fed, algo, **common)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def test_fedexp_evaluates_the_mean_of_the_last_two_iterates() -> None:
    last = [train(fk.algorithm("fedexp", lr=0.1, average=False), rounds=rounds).params for rounds in (1, 4, 5)]
    close(train(fk.algorithm("fedexp", lr=0.1), rounds=1).params, last[0])
    close(train(fk.algorithm("fedexp", lr=0.1), rounds=5).params, (last[1] + last[2]) / 2)


def test_fedexp_takes_longer_steps_than_fedavg() -> None:
    """Its first step is FedAvg's displacement times a factor above 1, since these clients differ."""
    long = train(fk.algorithm("fedexp", lr=0.1, eps=1e-9), rounds=1).params - torch.as_tensor(X0)
    short = train(fk.algorithm("fedavg", lr=0.1), rounds=1).params - torch.as_tensor(X0)
    factors = long / short
    close(factors, torch.full_like(factors, float(factors[0])), 1e-8)
    assert factors[0] >= 1


def test_diloco_with_sgd_is_where_fedacg_sends_its_clients() -> None:
    outer = train(fk.algorithm("diloco", inner="sgd", lr=0.05, server_lr=1.0, momentum=0.6), cohort=3)
    close(outer.params, train(fk.algorithm("fedacg", lr=0.05, lam=0.6, beta=0.0), cohort=3).server.z)


@pytest.mark.parametrize(
    ("algo", "betas", "decay", "rounds"),
    [
        (fk.algorithm("diloco", lr=0.01, lam=0.2, server_lr=1.0, momentum=0.0), (0.9, 0.95), 0.2, 3),
        (fk.algorithm("fedadamw", lr=0.01, lam=0.2), (0.9, 0.999), 0.2, 1),
    ],
)
def test_one_client_is_adamw(algo: fk.Algorithm, betas: tuple[float, float], decay: float, rounds: int) -> None:
    fed = fk.Federation.from_arrays([(FED[0].x.numpy(), FED[0].y.numpy())])
    model = linear_model(D, bias=False, x0=X0)
    adamw = torch.optim.AdamW(model.parameters(), lr=0.01, betas=betas, eps=1e-8, weight_decay=decay)
    for _ in range(3 * rounds):
        adamw.zero_grad()
        half_square(model(FED[0].x), FED[0].y).backward()
        adamw.step()
    close(train(algo, fed, rounds=rounds).params, model.weight.detach()[0])


@pytest.mark.parametrize("rho", [0.05, 0.2])
def test_the_limit_of_fedgamma_does_not_depend_on_the_local_steps(rho: float) -> None:
    limits = [
        train(fk.algorithm("fedgamma", lr=0.3, rho=rho), local_steps=K, rounds=rounds).params
        for K, rounds in ((1, 320), (4, 80))
    ]
    close(limits[0], limits[1], 1e-6)
    assert not torch.allclose(limits[0], train(fk.algorithm("scaffold", lr=0.3), local_steps=4, rounds=80).params, atol=1e-4)


def test_fedvarp_keeps_the_fixed_point_of_fedavg_whoever_takes_part() -> None:
    everybody = train(fk.algorithm("fedvarp", lr=0.2), rounds=100).params
    cohorts = [list(range(N))] * 100 + [[0], [3, 4], [1], [0, 2, 4]] * 3
    close(train(fk.algorithm("fedvarp", lr=0.2), rounds=112, cohort=cohorts).params, everybody, 1e-6)
    moved = train(fk.algorithm("fedavg", lr=0.2), rounds=112, cohort=cohorts).params
    assert (moved - everybody).norm() > 0.01


def test_fedawe_with_all_clients_is_fedavg() -> None:
    close(train(fk.algorithm("fedawe", server_lr=0.7)).params, train(fk.algorithm("fedavg", server_lr=0.7)).params)


def test_a_client_of_fedawe_works_on_its_last_model_and_makes_up_for_its_absence() -> None:
    """Client 0 is there in rounds 0 and 3. In round 3 its displacement from its own model counts three times."""
    cohorts = [[0], [1, 2], [3], [0]]
    x1, x3, x4 = (train(fk.algorithm("fedawe"), rounds=t, cohort=cohorts[:t]).params for t in (1, 3, 4))
    assert (x3 - x1).norm() > 1e-3
    once = train(fk.algorithm("fedavg"), fed=fk.Federation.from_arrays([(FED[0].x.numpy(), FED[0].y.numpy())]),
                 x0=x1.numpy(), rounds=1).params  # fmt: skip
    close(x4, x1 + 3 * (once - x1))


def test_fedawe_has_a_training_loss_and_batch_statistics() -> None:
    """Its local steps are in the first of two exchanges."""
    run = golden.finished_run("fedawe", "convolutional", torch.float32)
    assert all(np.isfinite(row["train_loss"]) for row in run.history)
    assert run.model.get_buffer("0.2.num_batches_tracked") > 0
    assert run.model.get_buffer("0.2.running_mean").abs().sum() > 0


@pytest.mark.parametrize("d", [1, 31, 32, 33, 70])
def test_signs_survive_packing(d: int) -> None:
    u = torch.randn(3, d, generator=torch.Generator().manual_seed(d)).double()
    u[0, 0] = 0.0
    packed = packed_signs(u)
    assert packed.shape == (3, -(-d // 32))
    assert packed.dtype == torch.int32
    assert torch.equal(unpacked_signs(packed, u[0]), torch.where(u >= 0, 1.0, -1.0).double())


@pytest.mark.parametrize("cohort", [2, N])
def test_fedcams_is_fedams_with_an_uplink_of_signs(cohort: int) -> None:
    """The uplink rounds its scale to float32; the method does not."""
    values = {"lr": 0.1, "server_lr": 0.3}
    runs = [
        train(fk.algorithm("fedcams", **values), cohort=cohort),
        train(fk.algorithm("fedams", **values), cohort=cohort, uplink=fk.Sign()),
    ]
    close(runs[0].params, runs[1].params, 1e-5)
    assert (runs[0].params - train(fk.algorithm("fedams", **values), cohort=cohort).params).norm() > 1e-3
    assert [row["up"] for row in runs[0].history] == [2] * 5  # one number with the signs of D = 4, and the scale


def test_uploads_of_fedcams_are_32_times_smaller() -> None:
    full, signs = (golden.finished_run(name, "dense", torch.float32).history[0] for name in ("fedams", "fedcams"))
    assert signs["up"] == -(-full["up"] // 32) + 1
    assert signs["up_bytes"] == 4 * signs["up"]


def test_fadas_cuts_its_step_above_the_threshold() -> None:
    delays = torch.tensor([0.0, 1.0, 2.0, 3.0, 40.0], dtype=torch.float64)
    divided, capped = (fk.algorithm("fadas", server_lr=0.1, tau_c=2, cut=cut) for cut in ("divide", "cap"))
    assert [float(divided.step_for(one)) for one in delays] == pytest.approx([0.1, 0.1, 0.1, 0.1 / 3, 0.1 / 40])
    assert [float(capped.step_for(one)) for one in delays] == pytest.approx([0.1, 0.1, 0.1, 0.1, 1 / 40])


def interval_weights(takes_part: np.ndarray, cutoff: int) -> np.ndarray:
    """FedAU's weights by a loop over all rounds: an interval ends with a participation, or when it reaches the cutoff."""
    weights, ended, now = [], [], 0
    for part in takes_part:
        now += 1
        if part:
            weights.append(np.mean(ended) if ended else 1.0)
        if part or now == cutoff:
            ended.append(now)
            now = 0
    return np.array(weights)


@pytest.mark.parametrize("cutoff", [1, 2, 3, 7, 50])
def test_intervals_of_fedau_are_those_of_a_loop_over_all_rounds(cutoff: int) -> None:
    takes_part = np.random.default_rng(cutoff).random(120) < 0.2
    algo = fk.algorithm("fedau", cutoff=cutoff)
    x = torch.zeros(D, dtype=torch.float64)
    server, mem = algo.init(x)

    class One:
        """A client whose displacement is 1 everywhere."""

        def copy(self, z: torch.Tensor) -> torch.Tensor:
            return z + 1

        def __iter__(self) -> Any:
            return iter(())

    found, steps = [], One()
    for t in np.flatnonzero(takes_part):
        steps.t = int(t)  # type: ignore[attr-defined]
        up, mem = algo.client(server, mem, steps)  # type: ignore[arg-type]
        found.append(float(up.u[0]))
    np.testing.assert_allclose(found, interval_weights(takes_part, cutoff), rtol=1e-12)


def test_fedau_without_intervals_is_fedavg_with_a_shorter_step() -> None:
    close(
        train(fk.algorithm("fedau", cutoff=1), cohort=3).params,
        train(fk.algorithm("fedavg", server_lr=3 / N), cohort=3).params,
    )


def test_fedlesam_has_no_perturbation_in_a_clients_first_round() -> None:
    cohorts = [[0, 1], [2, 3], [4]]
    runs = [train(fk.algorithm(name), rounds=3, cohort=cohorts).params for name in ("fedlesam", "fedavg")]
    close(*runs)
    runs = [train(fk.algorithm(name), rounds=4, cohort=[*cohorts, [0, 1]]).params for name in ("fedlesam", "fedavg")]
    assert not torch.allclose(*runs)


def test_delta_sgd_measures_the_curvature() -> None:
    """On a quadratic with one curvature L, the step becomes gamma / (2 L)."""
    L = 4.0
    fed = fk.Federation.from_arrays([(np.sqrt(L * D) * np.eye(D), np.zeros((D, 1)))])
    run = train(fk.algorithm("delta-sgd", eta0=0.2, gamma=1.0), fed, rounds=1, local_steps=3)
    close(run.params, torch.as_tensor(X0 * (1 - 0.2 * L) * (1 - 0.5) ** 2))


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 5)])
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    M = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = torch.linalg.svdvals(newton_schulz(M, 5))
    assert found.min() > 0.6
    assert found.max() < 1.2
    close(newton_schulz(3 * M, 5), newton_schulz(M, 5), 1e-6)
    close(newton_schulz(M, 5).mT, newton_schulz(M.mT, 5))


def test_muon_takes_matrices_and_leaves_vectors() -> None:
    layers = Layers([12, 3, 16], shapes=[(3, 4), (3,), (4, 2, 1, 2)])
    u = torch.randn(2, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrices = in_matrices(layers, u)
    assert matrices.tolist() == [1.0] * 12 + [0.0] * 3 + [1.0] * 16
    found = muon_direction(u.clone(), layers, 5, "matrix")
    assert torch.equal(found[:, 12:15], u[:, 12:15])
    close(found[:, :12].view(2, 3, 4), newton_schulz(u[:, :12].view(2, 3, 4), 5))
    close(found[:, 15:].view(2, 4, 4), newton_schulz(u[:, 15:].view(2, 4, 4), 5))
    tall = muon_direction(u[:, :12].clone(), Layers([12], shapes=[(6, 2)]), 5, "matrix")
    close(tall.view(2, 6, 2), 3**0.5 * newton_schulz(u[:, :12].view(2, 6, 2), 5))


def test_unit() -> None:
    close(unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_fedadamw_sends_one_second_moment_per_parameter_tensor() -> None:
    layers = Layers([5, 4, 3])
    algo = fk.algorithm("fedadamw").plan(Plan(N=1, S=1, K=1, T=1, layers=layers))
    up = trial_upload(algo, "client", layers, torch.float32)
    assert [len(z) for z in up] == [12, 3]


def test_conditions_of_fedawe_and_fedcams() -> None:
    """FedAWE's vector travels in its survey. FedCAMS sends packed bits, which noise would destroy."""
    plain, compressed, attacked = (
        train(fk.algorithm("fedawe"), cohort=3, **settings).params
        for settings in ({}, {"uplink": fk.Sign()}, {"attack": fk.SignFlip(fraction=0.4)})
    )
    assert (plain - compressed).norm() > 1e-4
    assert (plain - attacked).norm() > 1e-4
    for settings in ({"uplink": "sign"}, {"privacy": "gaussian:clip=1,noise=1,where=client"}):
        with pytest.raises(ValueError, match="is not allowed with fedcams: its clients send"):
            train(fk.algorithm("fedcams"), cohort=3, **settings)
