"""Random numbers of the channel. They depend on the run's seed and on what they are for, never on the engine."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A generator on the CPU. purpose: what the numbers are for, such as ("noise", round, field)."""
    text = " ".join(map(str, ("channel", seed, *purpose)))
    return torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()))
