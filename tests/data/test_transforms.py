"""Normalisation and augmentation of images. All engines do the same to the same sample."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.data.transforms import CropFlip, Normalise, augmentation

RNG = np.random.default_rng(0)
IMAGES = torch.from_numpy(RNG.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8))
LABELS = torch.from_numpy(RNG.integers(0, 3, 60))


def test_normalise_is_the_textbook_formula() -> None:
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.25, 0.5)
    expected = (IMAGES.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    found = Normalise(mean, std)(IMAGES)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, atol=1e-6)


def test_a_crop_is_a_window_of_the_padded_image_mirrored_or_not() -> None:
    """Every result is one of the windows of its image. All places and both directions occur."""
    x, p = IMAGES[:1].expand(4000, -1, -1, -1), 2
    padded = torch.nn.functional.pad(x[0], (p,) * 4)
    windows = {}
    for down in range(2 * p + 1):
        for right in range(2 * p + 1):
            window = padded[:, down : down + 8, right : right + 8]
            windows[window.numpy().tobytes()] = (down, right, False)
            windows[window.flip(-1).contiguous().numpy().tobytes()] = (down, right, True)
    found = [windows[z.numpy().tobytes()] for z in CropFlip(p)(x, np.random.default_rng(1))]
    counts = np.array([found.count(place) for place in set(windows.values())])
    assert len(counts) == 50
    assert counts.min() > 0.4 * 4000 / 50
    assert counts.max() < 1.6 * 4000 / 50


def test_augmentation_keeps_its_input_and_uses_the_generator() -> None:
    before = IMAGES.clone()
    one, same, other = (CropFlip(4)(IMAGES, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(IMAGES, before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.dtype == torch.uint8


def test_augmentations_by_name() -> None:
    assert augmentation("crop-flip", (3, 32, 32)) == CropFlip(4)
    assert augmentation("crop-flip", (3, 64, 64)) == CropFlip(8)
    with pytest.raises(ValueError, match=r"augment: unknown name 'crop-flop'.*crop-flip"):
        augmentation("crop-flop", (3, 32, 32))
    with pytest.raises(ValueError, match=r"needs images"):
        augmentation("crop-flip", (54,))


CROP, NORMALISE = CropFlip(2), Normalise((0.5,) * 3, (0.25,) * 3)


def federation(augment: Any = CROP, prepare: Any = NORMALISE) -> fk.Federation:
    data = fk.Dataset("noise", IMAGES, LABELS, (IMAGES[:20], LABELS[:20]), prepare=prepare, augment=augment)
    return data.split("dirichlet_per_class", clients=5, concentration=1.0)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def weights(engine: str, fed: fk.Federation, **changes: Any) -> torch.Tensor:
    settings = {"rounds": 3, "cohort": 3, "local_steps": 4, "batch_size": 5, "engine": engine, "progress": False} | changes
    return fk.train(model, fed, "scaffold", **settings).params


@pytest.mark.parametrize("batch_size", [5, None])
def test_every_engine_augments_the_same_samples_in_the_same_way(batch_size: int | None) -> None:
    sequential = weights("sequential", federation(), batch_size=batch_size)
    assert torch.equal(sequential, weights("processes", federation(), workers=2, batch_size=batch_size))
    assert torch.allclose(sequential, weights("vectorized", federation(), batch_size=batch_size), atol=1e-5)
    assert not torch.allclose(sequential, weights("sequential", federation(augment=None), batch_size=batch_size), atol=1e-3)


def test_normalising_in_the_engine_equals_normalising_before() -> None:
    fed = federation(augment=None)
    assert fed.prepare is not None
    assert fed.test is not None
    ready = dataclasses.replace(fed, x=fed.prepare(fed.x), test=(fed.prepare(fed.test[0]), fed.test[1]), prepare=None)
    assert torch.equal(weights("sequential", fed), weights("sequential", ready))
    rows = [fk.train(model, f, "fedavg", rounds=1, cohort=5, progress=False).history[-1] for f in (fed, ready)]
    assert rows[0]["test_loss"] == rows[1]["test_loss"]


def test_every_step_and_round_is_augmented_differently() -> None:
    """Every step takes all local data. Without augmentation all steps see the same batch, with it no batch occurs twice."""
    seen: list[bytes] = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.numpy().tobytes())
        return x.float()

    data = fk.Dataset("noise", IMAGES, LABELS, prepare=spy, augment=CropFlip(2))
    fed = data.split("iid", clients=1)
    fk.train(model, fed, "fedavg", rounds=3, cohort=1, local_steps=1, batch_size=None, engine="sequential", progress=False)
    batches = [z for z in seen if len(z) == IMAGES.numel()]
    assert len(batches) == len(set(batches)) == 3


def test_the_fingerprint_includes_normalisation_and_augmentation() -> None:
    variants = [
        federation(None, None),
        federation(None),
        federation(CropFlip(2)),
        federation(CropFlip(3)),
        federation(CropFlip(2), Normalise((0.4,) * 3, (0.25,) * 3)),
    ]
    assert len({fed.fingerprint() for fed in variants}) == len(variants)
    assert federation().fingerprint() == federation().fingerprint()
