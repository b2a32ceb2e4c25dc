"""An audit of privacy: many runs with and without one client. What tells them apart must not exceed epsilon.

The client sends the largest upload that clipping allows, always in the same direction, and its neighbour the opposite. The
auditor sees the final model and knows the direction. From how often it guesses right follows a lower bound of epsilon, at
confidence 99 % (Clopper and Pearson's intervals for both kinds of error, Jagielski et al. 2020).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedkeel as fk
from fedkeel.channel import channel

DELTA, RUNS = 0.05, 600  # runs with the client, and as many without
NOISE = {"everybody": 2.0, "fixed": 1.0, "poisson": 0.7, "local": 3.0}  # so that epsilon is about 2
SAMPLINGS: dict[str, dict[str, Any]] = {
    "everybody": {"cohort": 6},
    "fixed": {"cohort": 3},
    "poisson": {"cohort": 3, "participation": "bernoulli"},
    "local": {"cohort": [[0], [0]]},  # the auditor sees the uploads of this client alone
}


def zeros() -> torch.nn.Module:
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def federation(pull: float) -> fk.Federation:
    """Client 0 pulls all weights up or down, as far as clipping allows. The others do nothing."""
    of = lambda z: (np.full((1, 4), z, np.float32), np.zeros((1, 1), np.float32))  # noqa: E731
    return fk.Federation.from_arrays([of(pull), *[of(0.0)] * 5])


def seen(pull: float, settings: dict[str, Any]) -> tuple[np.ndarray, float]:
    """What the auditor sees in every run, and the epsilon that the runs report."""
    found, fed = [], federation(pull)
    for seed in range(RUNS):
        run = fk.train(
            zeros,
            fed,
            "fedavg",
            loss=lambda output, y: output.mean(),
            seed=seed if pull < 0 else RUNS + seed,
            rounds=2,
            local_steps=1,
            batch_size="all",
            engine="sequential",
            progress=False,
            evaluate_every=0,
            **settings,
        )
        found.append(float(run.params.sum()))
    return np.array(found), float(run.history[-1]["epsilon"])


def bound(with_client: np.ndarray, without: np.ndarray) -> float:
    """The largest epsilon that the guesses prove. A half of the runs chooses the threshold, the other tests it."""

    def proved(a: np.ndarray, b: np.ndarray, threshold: float) -> float:
        hit, false = int((a > threshold).sum()), int((b > threshold).sum())
        low = stats.beta.ppf(0.005, hit, len(a) - hit + 1) if hit else 0.0
        high = stats.beta.ppf(0.995, false + 1, len(b) - false) if false < len(b) else 1.0
        return math.log((low - DELTA) / high) if low > DELTA else -math.inf

    half = RUNS // 2
    choices = np.concatenate([with_client[:half], without[:half]])
    threshold = max(choices, key=lambda z: proved(with_client[:half], without[:half], z))
    return max(0.0, proved(with_client[half:], without[half:], threshold))


def audit(name: str) -> tuple[float, float]:
    """The bound that the audit proves, and the epsilon that the runs report."""
    where = "client" if name == "local" else "server"
    settings = SAMPLINGS[name] | {"privacy": fk.Privacy(clip=1.0, noise=NOISE[name], delta=DELTA, where=where)}
    # For Poisson sampling the neighbour has no such client; otherwise another client has its place.
    (up, epsilon), (down, _) = (seen(pull, settings) for pull in (-1e3, 0.0 if name == "poisson" else 1e3))
    return bound(up, down), epsilon


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLINGS)
def test_runs_with_and_without_a_client_differ_by_at_most_epsilon(name: str) -> None:
    proved, epsilon = audit(name)
    print(f"{name}: the audit proves {proved:.2f}, epsilon is {epsilon:.2f}")
    assert 0.1 < proved <= epsilon


@pytest.mark.slow
def test_the_audit_finds_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the noise, and the same claim."""
    normal = channel.private.normal
    monkeypatch.setattr(channel.private, "normal", lambda like, deviation, *a: normal(like, deviation / 3, *a))
    proved, epsilon = audit("everybody")
    assert proved > epsilon
