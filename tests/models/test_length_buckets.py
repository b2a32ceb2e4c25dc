"""Texts in buckets of similar length: the same numbers as all texts of a batch together, with less padding."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedkeel as fk
from fedkeel.models import length_buckets
from fedkeel.models.length_buckets import PASS, bucket_cuts, in_buckets
from fedkeel.models.lstm import lstm


def texts(n: int, longest: int = 60, seed: int = 0) -> Tensor:
    """Token ids [n, longest] of texts with unlike lengths; one text is empty."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.08, size=n), longest)
    lengths[0] = 0
    return torch.from_numpy(np.where(np.arange(longest) < lengths[:, None], rng.integers(1, 50, (n, longest)), 0))


def cost(lengths: list[int], cuts: tuple[int, ...]) -> int:
    return sum(PASS + (stop - start) * lengths[stop - 1] for start, stop in pairwise(cuts))


@pytest.mark.parametrize("seed", range(5))
def test_no_other_cuts_cost_less(seed: int) -> None:
    lengths = sorted(np.random.default_rng(seed).integers(1, 200, 9).tolist())
    inner = [cuts for k in range(9) for cuts in combinations(range(1, 9), k)]
    cheapest = min(cost(lengths, (0, *cuts, 9)) for cuts in inner)
    assert cost(lengths, tuple(bucket_cuts(lengths))) == cheapest


def test_texts_of_one_length_stay_together() -> None:
    assert bucket_cuts([30] * 32) == [0, 32]
    assert bucket_cuts([7]) == [0, 1]


def test_large_batches_are_cut_at_few_places() -> None:
    cuts = bucket_cuts(sorted(range(1, 2001)))
    assert cuts[0] == 0
    assert cuts[-1] == 2000
    assert 4 < len(cuts) <= 33


def test_every_text_is_read_once_and_comes_back_to_its_place() -> None:
    x, seen = texts(200), []

    def read(tokens: Tensor) -> Tensor:
        seen.append(tokens)
        return torch.stack([tokens.sum(1), (tokens > 0).sum(1)], 1)

    assert torch.equal(in_buckets(read, x), torch.stack([x.sum(1), (x > 0).sum(1)], 1))
    assert len(seen) > 1
    assert sum(len(tokens) for tokens in seen) == 200
    assert sum(tokens.numel() for tokens in seen) < 0.6 * x[:, : int((x > 0).sum(1).max())].numel()


def test_the_gradient_is_that_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, y = lstm(50, 3, embedding=4, hidden=5).double(), texts(32), torch.arange(32) % 3

    def gradient() -> list[Tensor]:
        return list(torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), list(model.parameters())))

    cut = gradient()
    monkeypatch.setattr(length_buckets, "bucket_cuts", lambda lengths: [0, len(lengths)])
    for one, whole in zip(cut, gradient(), strict=True):
        torch.testing.assert_close(one, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["scaffold", "moon", "fedmlb"])
def test_processes_have_the_bits_of_sequential(method: str) -> None:
    x = texts(120)
    fed = fk.Federation.from_arrays([(x[i : i + 30].numpy(), np.arange(30) % 2) for i in range(0, 120, 30)])
    settings: dict[str, Any] = {"rounds": 2, "cohort": 3, "local_steps": 2, "batch_size": 16, "progress": False}
    one, other = (
        fk.train(lambda: lstm(50, 2, embedding=4, hidden=5), fed, method, engine=engine, workers=2, **settings)
        for engine in ("sequential", "processes")
    )
    assert torch.equal(one.params, other.params)
