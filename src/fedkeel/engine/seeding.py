"""All random numbers of a run. They depend on (seed, round, client) only, not on which process runs a client, or when."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence

import numpy as np
import torch

SAMPLING, BATCHES, ROLES, MODEL, AUGMENT, METHOD, VALIDATION = range(7)
PRESENCE, FLEET = 20, 21  # who is there in a round; how fast each client is


def generator(seed: int, stream: int, t: int, client: int = 0) -> np.random.Generator:
    """The generator for one purpose (stream), round t (-1 is the warm-up) and client."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, stream, t + 1, client))))


def sample(seed: int, t: int, N: int, S: int) -> list[int]:
    """The S participants of round t, without replacement, in increasing order."""
    if S == N:
        return list(range(N))
    return sorted(generator(seed, SAMPLING, t).choice(N, size=S, replace=False, shuffle=False).tolist())


def batch_order(rng: np.random.Generator, n: int, K: int, batch: int) -> tuple[np.ndarray, list[int]]:
    """K mini-batches from n samples. Each pass over the data is a new permutation, cut into batches; the last may be short.

    Returns the sample numbers of all batches in a row, and the size of each batch.
    """
    epochs = -(-K // -(-n // batch))
    order = np.concatenate([rng.permutation(n) for _ in range(epochs)]) if epochs > 1 else rng.permutation(n)
    sizes = batch_sizes(n, K, batch)
    return order[: sum(sizes)], sizes


def batch_sizes(n: int, K: int, batch: int) -> list[int]:
    """The sizes of K mini-batches from n samples. The last one of each pass over the data may be short."""
    epochs = -(-K // -(-n // batch))
    return (([batch] * (n // batch) + ([n % batch] if n % batch else [])) * epochs)[:K]


def method_seed(seed: int, t: int, client: int) -> int:
    """Seeds what a method draws in its local steps (`steps.random`)."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {METHOD} {t} {client}".encode(), digest_size=7).digest())


def model_seed(seed: int, t: int, client: int) -> int:
    """The seed for what the model itself draws (dropout). A hash: a SeedSequence would take a tenth of a small step."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {MODEL} {t} {client}".encode(), digest_size=7).digest())


class SharedGenerators:
    """A lock for torch's CPU generator, which all threads of a process share. Whoever seeds it and draws from it holds the
    lock meanwhile. So runs in two threads get the numbers that they would get one after the other."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):  # another thread may hold the lock while this one forks
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


GENERATORS = SharedGenerators()


def seed_torch(seed: int, device: torch.device) -> None:
    """Seeds what a model on this device draws from (dropout): the CPU's generator and the device's own."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def cuda_numbers(devices: Sequence[torch.device]) -> list[int]:
    """The numbers of the CUDA devices among these, for torch's `fork_rng`."""
    return sorted({device.index or 0 for device in devices if device.type == "cuda" and torch.cuda.is_initialized()})
