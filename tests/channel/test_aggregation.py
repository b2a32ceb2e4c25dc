"""Robust means, compared with scipy and Flower."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fedkeel.channel import aggregation as rules
from fedkeel.core.round import weighted_sum


def uploads(S: int = 11, d: int = 7, seed: int = 0) -> torch.Tensor:
    z = torch.randn(S, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z[-2:] += 30  # two clients are far away
    return z


def result(rule: rules.Aggregation, z: torch.Tensor) -> np.ndarray:
    p = torch.ones(len(z), dtype=torch.float64) / len(z)
    weights = rule.weights(rules.inner_products([z[:, :3], z[:, 3:]]), p)
    return (weighted_sum(weights, z) if rule.whole else rule.mean(p, z)).numpy()


@pytest.mark.parametrize("S", [1, 2, 5, 10])
def test_median_and_trimmed_mean_equal_those_of_scipy(S):
    z = uploads(S)
    np.testing.assert_allclose(result(rules.Median(), z), np.median(z.numpy(), axis=0), rtol=1e-12)
    for share in (0.0, 0.1, 0.2, 0.45):
        wanted = stats.trim_mean(z.numpy(), share, axis=0)
        np.testing.assert_allclose(result(rules.TrimmedMean(share), z), wanted, rtol=1e-12)


def test_the_geometric_median_is_the_minimiser_that_scipy_finds():
    z = uploads().numpy()
    distance = lambda x: np.linalg.norm(z - x, axis=1).sum()  # noqa: E731
    best = optimize.minimize(distance, z.mean(0), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(result(rules.GeometricMedian(), torch.from_numpy(z)), best.x, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 9])
def test_krum_and_multi_krum_equal_those_of_flower(kept):
    flower = pytest.importorskip("flwr.serverapp.strategy.multikrum")
    z = uploads()
    chosen = _flower_krum(flower, z, bad=2, kept=kept)
    rule = rules.MultiKrum(0.2) if kept else rules.Krum(0.2)
    np.testing.assert_allclose(result(rule, z), z[chosen].mean(0).numpy(), rtol=1e-10)


def _flower_krum(flower, z, bad, kept):
    """The rows that Flower's Krum takes. Its strategy orders replies by their scores and keeps the first ones."""
    from flwr.app import ArrayRecord, RecordDict

    replies = [RecordDict({"arrays": ArrayRecord([row.numpy()])}) for row in z]
    taken = flower.select_multikrum(replies, num_malicious_nodes=bad, num_nodes_to_select=kept or 1)
    return [replies.index(one) for one in taken]


def test_norm_bounding_and_centred_clipping_follow_their_definitions():
    z = uploads().numpy()
    bounded = z * np.minimum(1, 2.0 / np.linalg.norm(z, axis=1, keepdims=True))
    np.testing.assert_allclose(result(rules.NormBound(2.0), torch.from_numpy(z)), bounded.mean(0), rtol=1e-10)
    v = np.zeros(z.shape[1])
    for _ in range(3):
        away = z - v
        v = v + (away * np.minimum(1, 1.5 / np.linalg.norm(away, axis=1, keepdims=True))).mean(0)
    np.testing.assert_allclose(result(rules.CentredClipping(1.5, 3), torch.from_numpy(z)), v, rtol=1e-9)


@pytest.mark.parametrize(
    "rule", [rules.Median(), rules.TrimmedMean(0.2), rules.Krum(), rules.MultiKrum(), rules.GeometricMedian()]
)
def test_two_bad_clients_of_eleven_move_robust_means_little(rule):
    good = uploads()[:-2].mean(0).numpy()
    assert np.linalg.norm(result(rule, uploads()) - good) < 3 < np.linalg.norm(uploads().mean(0).numpy() - good)
