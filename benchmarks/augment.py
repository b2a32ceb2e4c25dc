"""How much augmentation costs: CPU time of rounds of LeNet-5 on 3 x 32 x 32 images with crop-flip, divided by that without.

python benchmarks/augment.py
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

import fedkeel as fk
from fedkeel.data.transforms import CropFlip, Normalise

REPEATS = 5


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def seconds(augment: CropFlip | None) -> float:
    """CPU seconds of 3 rounds of 5 clients that take 10 steps of 50 images."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (10_000, 3, 32, 32), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, len(x)))
    data = fk.Dataset("noise", x, y, prepare=Normalise((0.5,) * 3, (0.25,) * 3), augment=augment)
    fed = data.split("iid", clients=20)
    start = time.process_time()
    fk.train(lenet, fed, "fedavg", rounds=3, cohort=5, local_steps=10, engine="sequential", progress=False)
    return time.process_time() - start


if __name__ == "__main__":
    seconds(None)  # the first run includes set-up
    pairs = [(seconds(CropFlip(4)), seconds(None)) for _ in range(REPEATS)]
    ratios = sorted(a / b for a, b in pairs)
    print(f"with / without: median {ratios[len(ratios) // 2]:.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}")
