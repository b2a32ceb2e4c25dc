"""Changes to stored images before the model sees them: normalisation, and random crops and flips in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkeel.data.federation import Augment
from fedkeel.errors import nearest

WIDE = 64  # images with at least this many pixels per side are padded by 8 pixels, smaller ones by 4


@dataclass(frozen=True)
class Normalise:
    """Bytes 0..255 [B, C, H, W] -> (x / 255 - mean) / std in float32, per channel."""

    mean: tuple[float, ...]  # [C] of the training set, in [0, 1]
    std: tuple[float, ...]  # [C]

    def __call__(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(z, device=x.device).view(-1, 1, 1) for z in (self.mean, self.std))
        return x.float().mul_(1 / (255 * std)).sub_(mean / std)


@dataclass(frozen=True)
class CropFlip:
    """Pads every image with `padding` black pixels, crops it to its size at a random place, and may mirror it."""

    padding: int

    def __call__(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        B, C, H, W = x.shape
        p = self.padding
        padded = np.zeros((B, C, H + 2 * p, W + 2 * p), dtype=x.numpy().dtype)
        padded[:, :, p : p + H, p : p + W] = x.numpy()
        down, right = rng.integers(0, 2 * p + 1, (2, B))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (H, W), axis=(2, 3))  # [B, C, 2p+1, 2p+1, H, W]
        cut = windows[np.arange(B), :, down, right]  # [B, C, H, W]
        mirrored = np.flatnonzero(rng.integers(0, 2, B))
        cut[mirrored] = cut[mirrored, :, :, ::-1]
        return torch.from_numpy(cut)


def augmentation(name: str, shape: tuple[int, ...]) -> Augment:
    """The augmentation of that name for samples of that shape. The papers use crop-flip, the only one so far."""
    if name != "crop-flip":
        raise ValueError(f"augment: unknown name {name!r}{nearest(name, ('crop-flip',))}")
    if len(shape) != 3:
        raise ValueError(
            f"augment = {name!r} is not allowed; it needs images [C, H, W], but these samples have shape {list(shape)}"
        )
    return CropFlip(8 if shape[1] >= WIDE else 4)
