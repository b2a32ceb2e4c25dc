"""Differential privacy of clients: how far an upload may move a sum, and the noise on that sum.

The whole upload of a client, all fields together, is scaled down to the norm `clip`. Normal noise with the standard
deviation `noise * clip` is added to the sum of each field. So one upload moves the sums by at most `clip`.
With `where="client"` every client adds this noise to its own upload, and nobody needs to trust the server.

The noise follows from the seed of the run. Whoever knows the seed can subtract it, so a deployment needs a secret seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.channel.draws import generator
from fedkeel.channel.words import Condition
from fedkeel.core.hyperparameters import hp, is_number


@dataclass(frozen=True)
class Privacy(Condition):
    """Clipping and noise. Give `noise`, or `epsilon` and the run finds the noise that lasts for all its rounds.

    With both, the run stops before the round that would spend more than `epsilon`.
    """

    word = "gaussian"
    clip: float = hp(1.0, "largest norm of an upload, all fields together", above=0)
    noise: float | None = hp(None, "standard deviation of the noise on a sum, in units of clip", least=0)
    epsilon: float | None = hp(None, "budget: what the whole run may spend", above=0)
    delta: float = hp(1e-5, "probability that epsilon does not hold", above=0, below=1)
    where: str = hp(
        "server", "who adds the noise: the server to sums, or each client to its upload", choices=("server", "client")
    )
    quantile: float | None = hp(None, "clip follows this quantile of the norms; by default it stays", above=0, below=1)
    clip_lr: float = hp(0.2, "step size of a clip that follows a quantile", above=0)
    scales: str = hp("", "fields with another scale, such as dc=0.1;v=0.01: the field is divided by it before clipping")

    cap: int | None = hp(None, "with weights = samples: more samples than this count as this number", least=1)

    def __init__(
        self,
        clip: float = 1.0,
        noise: float | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        where: str = "server",
        quantile: float | None = None,
        clip_lr: float = 0.2,
        scales: str | Mapping[str, float] = "",
        cap: int | None = None,
    ) -> None:
        """scales: also a dictionary, field -> scale."""
        if isinstance(scales, Mapping):
            scales = ";".join(f"{name}={value}" for name, value in scales.items())
        values = (clip, noise, epsilon, delta, where, quantile, clip_lr, scales, cap)
        for field, value in zip(dataclasses.fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)
        self.__post_init__()
        if self.noise is None and self.epsilon is None:
            raise ValueError("privacy needs noise or epsilon; with epsilon the run finds the noise")
        if self.quantile is not None and self.where == "client":
            raise ValueError("privacy: quantile is not allowed with where = 'client'; only the server can follow a quantile")
        self.scale_of("")

    def scale_of(self, field: str) -> float:
        """The scale of a field of the upload."""
        found = {}
        for part in filter(None, self.scales.split(";")):
            name, _, text = part.partition("=")
            try:
                found[name.strip()] = float(text)
            except ValueError:
                found[name.strip()] = math.nan
            if not (is_number(found[name.strip()]) and found[name.strip()] > 0):
                raise ValueError(f"privacy: scales = {self.scales!r} is not allowed; write it as field=number;field=number")
        return found.get(field, 1.0)


KINDS: list[type[Privacy]] = [Privacy]


def norms(fields: Mapping[str, Tensor], privacy: Privacy) -> Tensor:
    """[S] float64: the norm of every upload over all its fields, each divided by its scale. fields: [S, ...] each."""
    squares: Any = 0.0
    for name, z in fields.items():
        norm = torch.linalg.vector_norm(z.reshape(len(z), -1), dim=1).double() / privacy.scale_of(name)
        squares = squares + norm.square()
    total: Tensor = squares.sqrt()
    return total


def capped(samples: Sequence[int] | np.ndarray, privacy: Privacy | None) -> Tensor:
    """[N] float64, the weight of every client in a sum: at most 1, so that no client moves the sum by more than `clip`.

    Without a cap all clients have the weight 1.
    """
    sizes = torch.as_tensor(np.asarray(samples)).double()
    if privacy is None or privacy.cap is None:
        return torch.ones_like(sizes)
    return sizes.clamp_max(privacy.cap) / privacy.cap


def factors(lengths: Tensor, clip: float) -> Tensor:
    """[S] what every upload is multiplied by, so that its norm is at most `clip`."""
    return (clip / lengths.clamp_min(1e-300)).clamp_max(1.0)


def normal(like: Tensor, deviation: float, seed: int, *purpose: object) -> Tensor:
    """Normal noise with the shape of `like`."""
    drawn = torch.randn(like.shape, generator=generator(seed, "privacy", *purpose), dtype=like.dtype)
    return drawn.mul_(deviation).to(like.device)


def protect(
    up: Mapping[str, Tensor],
    privacy: Privacy,
    noise: float,
    not_negative: Collection[str],
    purpose: tuple[int, int, str, int],
) -> None:
    """A client clips its upload and adds noise to it, in place.

    not_negative: fields that noise must not make negative; they become at least its standard deviation.
    purpose: seed, round, exchange and client.
    """
    seed, *rest, client = purpose
    scale = float(factors(norms({name: z[None] for name, z in up.items()}, privacy), privacy.clip))
    for name, z in up.items():
        if scale < 1:
            z.mul_(scale)
        if noise:
            deviation = noise * privacy.clip * privacy.scale_of(name)
            z.add_(normal(z, deviation, seed, *rest, name, client))
            if name in not_negative:
                z.clamp_(min=deviation)


def noise_of_updates(noise: float, of_counts: float) -> float:
    """The noise on updates, if noise on the count of clipped uploads also belongs to a release of strength `noise`.

    of_counts: standard deviation of the noise on that count. A client moves the count by 1/2 (Andrew et al., theorem 1).
    """
    rest = noise**-2 - (2 * of_counts) ** -2
    if rest <= 0:
        raise ValueError(
            f"privacy: noise = {noise:g} is not allowed with quantile for so small a cohort; "
            f"it must be below {2 * of_counts:g}, a tenth of the cohort"
        )
    return float(rest**-0.5)


def next_clip(clip: float, below: Sequence[bool] | Tensor, count: int, noise: float, privacy: Privacy) -> float:
    """The clip of the next round: larger if fewer uploads than the quantile were below it.

    below: which uploads were.  count: clients of the round.  noise: what is added to the count.
    """
    assert privacy.quantile is not None
    share = (float(torch.as_tensor(below).double().sum()) - len(below) / 2 + noise) / count + 0.5 * len(below) / count
    return clip * math.exp(-privacy.clip_lr * (share - privacy.quantile))
