"""Clients that send something else than they should, for simulations of robust means.

A fixed part of the clients attacks, drawn from the seed of the run. Attackers change the vectors of their uploads, [d] each,
and leave single numbers such as FedNova's `a` as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkeel.channel.draws import generator
from fedkeel.channel.words import Condition
from fedkeel.core.hyperparameters import hp


@dataclass(frozen=True)
class Attack(Condition):
    """Base of all attacks."""

    flips_labels: ClassVar[bool] = False  # do attackers train on wrong labels?
    fraction: float = hp(0.2, "part of all clients that attacks", least=0, below=1)

    @property
    def neutral(self) -> bool:
        return self.fraction == 0

    def attackers(self, seed: int, N: int) -> list[int]:
        """The clients that attack in a run, in increasing order."""
        order = torch.randperm(N, generator=generator(seed, "attackers"))
        return sorted(order[: round(self.fraction * N)].tolist())

    def upload(self, z: Tensor, bad: Tensor, rng: torch.Generator) -> Tensor | None:
        """What the attackers send instead of one field, [m, d] or [d]. None: what they have.

        z: [S, d] the uploads of the round.  bad: [S] who attacks.
        """
        return None


@dataclass(frozen=True)
class SignFlip(Attack):
    """Attackers send the opposite of their upload."""

    word = "sign-flip"
    scale: float = hp(1.0, "the upload is multiplied by minus this", above=0)

    def upload(self, z: Tensor, bad: Tensor, rng: torch.Generator) -> Tensor:
        return -self.scale * z[bad]


@dataclass(frozen=True)
class RandomUpload(Attack):
    """Attackers send normal random numbers instead of their upload."""

    word = "noise"
    deviation: float = hp(0.1, "standard deviation of each number", above=0)

    def upload(self, z: Tensor, bad: Tensor, rng: torch.Generator) -> Tensor:
        drawn = torch.randn(int(bad.sum()), *z.shape[1:], generator=rng, dtype=z.dtype)
        return self.deviation * drawn.to(z.device)


@dataclass(frozen=True)
class ModelReplacement(Attack):
    """Attackers train on wrong labels and scale their upload up, so that the mean becomes theirs (Bagdasaryan et al.)."""

    word = "model-replacement"
    flips_labels = True
    scale: float | None = hp(None, "the factor; by default the round's clients divided by its attackers", above=0)

    def upload(self, z: Tensor, bad: Tensor, rng: torch.Generator) -> Tensor:
        return (self.scale or len(z) / int(bad.sum())) * z[bad]


@dataclass(frozen=True)
class ALIE(Attack):
    """A little is enough: all attackers send the honest mean, moved by a few standard deviations (Baruch et al. 2019)."""

    word = "alie"
    deviations: float | None = hp(None, "how far, in standard deviations; by default as in the paper", above=0)

    def upload(self, z: Tensor, bad: Tensor, rng: torch.Generator) -> Tensor | None:
        honest = z[~bad]
        if not len(honest):
            return None
        far = self.deviations if self.deviations is not None else largest_hidden(len(z), int(bad.sum()))
        return honest.mean(0) - far * honest.std(0, correction=0)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """All attackers send a negative multiple of the honest mean (Xie et al. 2020)."""

    word = "inner-product"
    scale: float = hp(0.5, "the multiple", above=0)

    def upload(self, z: Tensor, bad: Tensor, rng: torch.Generator) -> Tensor | None:
        return -self.scale * z[~bad].mean(0) if bool((~bad).any()) else None


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Attackers train honestly on wrong labels: class c becomes C - 1 - c."""

    word = "label-flip"
    flips_labels = True


KINDS: list[type[Attack]] = [SignFlip, RandomUpload, ModelReplacement, ALIE, InnerProduct, LabelFlip]


def largest_hidden(n: int, m: int) -> float:
    """How many standard deviations m attackers among n clients can move and still have enough honest clients farther out."""
    from scipy.stats import norm

    needed = n // 2 + 1 - m  # honest clients that must support the attackers
    return max(0.0, float(norm.ppf((n - m - needed) / (n - m)))) if n - m - needed > 0 else 0.0


def flipped(fed: Any, attackers: list[int]) -> Any:
    """The federation with wrong labels at the attackers."""
    import dataclasses

    import numpy as np

    if fed.y.is_floating_point() or fed.y.dim() != 1:
        raise ValueError("attack: it flips labels, so it needs one class number per sample")
    classes = fed.classes or int(fed.y.max()) + 1
    rows = [fed.rows(client, np.arange(fed.size(client))) for client in attackers]
    y = fed.y.clone()
    if rows:
        index = torch.from_numpy(np.concatenate(rows))
        y[index] = classes - 1 - y[index]
    return dataclasses.replace(fed, y=y)
