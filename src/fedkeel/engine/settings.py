"""How a run is to be trained, checked before any work starts."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.hyperparameters import is_number, plain
from fedkeel.engine import seeding
from fedkeel.errors import nearest, refuse
from fedkeel.wording import COUNT_OR_SHARE

STORES = ("auto", "disk")
ENGINES = ("auto", "sequential", "vectorized", "compiled", "processes", "ray")


@dataclass(frozen=True, kw_only=True)
class Settings:
    rounds: int
    cohort: int | float | Sequence[Sequence[int]] = 10
    local_steps: int | None = None
    local_epochs: int = 1
    batch_size: int | None = 50
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    clip: float | None = None
    weights: str = "uniform"
    seed: int = 0
    evaluate_every: int = 1
    min_clients: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        object.__setattr__(self, "cohort", _plain_cohort(self.cohort))
        _whole("rounds", self.rounds, 1)
        _whole("seed", self.seed, 0, bits=64)
        _whole("evaluate_every", self.evaluate_every, 0)
        _whole("min_clients", self.min_clients, 1)
        if self.local_steps is None or self.local_epochs is not None:
            _whole("local_epochs", self.local_epochs, 1)
        if self.local_steps is not None:
            _whole("local_steps", self.local_steps, 1, otherwise=", or None for local_epochs")
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, 1, otherwise=", or None for all local data")
        if not is_number(self.weight_decay) or self.weight_decay < 0:
            raise refuse("weight_decay", self.weight_decay, ">= 0")
        if not is_number(self.lr_decay) or not 0 < self.lr_decay <= 1:
            raise refuse("lr_decay", self.lr_decay, "> 0 and <= 1")
        if self.clip is not None and (not is_number(self.clip) or self.clip <= 0):
            raise refuse("clip", self.clip, "> 0, or None")
        if not isinstance(self.weights, str) or self.weights not in ("uniform", "samples"):
            raise refuse("weights", self.weights, "'uniform' or 'samples'")

    def check_clients(self, N: int) -> None:
        """The checks that need the number of clients."""
        S = self.cohort
        if N < 1:
            raise refuse("clients", N, "a whole number >= 1")
        if isinstance(S, int) and not 1 <= S <= N:
            raise refuse("cohort", S, f"from 1 to the number of clients, {N}")
        if isinstance(S, float) and not 0 < S <= 1:
            raise refuse("cohort", S, "> 0 and <= 1 as a fraction (write a count as a whole number)")
        if isinstance(S, Sequence):
            if len(S) < self.rounds:
                raise ValueError(f"cohort: the list has {len(S)} rounds, the run {self.rounds}")
            for t, ids in enumerate(S):
                if not len(ids) or len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= N:
                    raise ValueError(f"cohort: round {t} must name different clients from 0 to {N - 1}, not {list(ids)}")
        if self.min_clients > self.largest_cohort(N):
            raise refuse("min_clients", self.min_clients, f"at most the cohort, {self.largest_cohort(N)}")

    def largest_cohort(self, N: int) -> int:
        if isinstance(self.cohort, Sequence):
            return max(len(ids) for ids in self.cohort[: self.rounds])
        return self.cohort if isinstance(self.cohort, int) else max(1, round(self.cohort * N))

    def smallest_cohort(self, N: int) -> int:
        if isinstance(self.cohort, Sequence):
            return min(len(ids) for ids in self.cohort[: self.rounds])
        return self.largest_cohort(N)

    def check_decay(self, algo: Algorithm) -> None:
        """Is there a step left in the last round?"""
        try:
            algo.at(self.rounds - 1, self.lr_decay)
        except ValueError as error:
            raise refuse("lr_decay", self.lr_decay, f"closer to 1 for {self.rounds} rounds: {error}") from error

    def participants(self, t: int, N: int) -> list[int]:
        if isinstance(self.cohort, Sequence):
            return sorted(int(i) for i in self.cohort[t])
        return seeding.sample(self.seed, t, N, self.largest_cohort(N))

    def steps_of(self, sizes: np.ndarray) -> np.ndarray:
        """Local steps of clients with so many samples (rule R3)."""
        if self.local_steps is not None:
            return np.full(len(sizes), self.local_steps)
        per_epoch = np.ones(len(sizes), dtype=np.int64) if self.batch_size is None else -(-sizes // self.batch_size)
        return self.local_epochs * per_epoch


def _plain_cohort(cohort: object) -> int | float | list[list[int]]:
    """A cohort of whatever numbers and sequences as Python's own."""
    value: Any = cohort.tolist() if isinstance(cohort, np.ndarray) else cohort
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return [[operator.index(i) for i in ids] for ids in value]
    except TypeError:
        raise refuse("cohort", cohort, "a count, a fraction or a list of client ids per round") from None


def check_engine(engine: str) -> None:
    if engine == "flower":
        raise ValueError("engine: 'flower': this run was deployed; go on with it by `flwr run` (docs/deploy.md)")
    if not isinstance(engine, str):
        raise refuse("engine", engine, "one of " + ", ".join(ENGINES))
    if engine not in ENGINES:
        raise ValueError(f"engine: unknown name {engine!r}{nearest(engine, ENGINES)}")


def check_store(store: str) -> None:
    if store not in STORES:
        raise refuse("store", store, " or ".join(map(repr, STORES)))


def check_workers(workers: int | None, timeout: float | None) -> tuple[int | None, float | None]:
    """Both as Python's own numbers."""
    workers, timeout = plain(workers), plain(timeout)
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise refuse("workers", workers, "a whole number >= 1, or None for one per core")
    if timeout is not None and (not is_number(timeout) or timeout <= 0):
        raise refuse("timeout", timeout, "> 0 seconds, or None")
    return workers, timeout


def check_loss(loss: object) -> None:
    if loss is not None and not callable(loss):
        raise refuse("loss", loss, "a function loss(output, target), or None for cross-entropy")


def check_device(device: object) -> None:
    """Is it something that could name a device? Whether it is there, torch says."""
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device | None):
        raise refuse("device", device, "'auto', 'cpu', 'cuda' or another device of torch")


def check_out(out: object, resume: bool) -> None:
    if not isinstance(out, str | os.PathLike | None):
        raise refuse("out", out, "a directory, or None")
    if resume and not out:
        raise ValueError("resume = True is not allowed without out; it must be the directory of the run to go on with")


def _whole(name: str, value: object, least: int, bits: int = 63, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(name, value, f"a whole number >= {least}{otherwise}")
    if value >= 2**bits:  # more than numpy can count, and torch can take for a seed
        raise refuse(name, value, f"a whole number < 2**{bits}")


def alike(key: str, then: Any, now: Any) -> bool:
    """Do two values of a setting or hyper-parameter mean the same?"""
    return bool(then == now) and (key not in COUNT_OR_SHARE or isinstance(then, float) == isinstance(now, float))
