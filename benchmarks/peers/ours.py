"""The same problem through fedkeel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from problem import (
    BATCH,
    CLASSES,
    EPOCHS,
    EQUAL_STEPS,
    HIDDEN,
    INPUTS,
    PARTIAL,
    ROUNDS,
    SEED,
    SIZES,
    Problem,
    make_data,
    split,
)
from torch import nn

import fedkeel as fk
from fedkeel.engine import seeding
from fedkeel.engine.settings import Settings


def problem(local_steps: int | None) -> Problem:
    """The problem with the batches that this library's engine draws (see fedkeel.engine.client_work)."""
    x0, data = make_data()
    epochs = EPOCHS if local_steps is None else None
    settings = Settings(rounds=ROUNDS, local_epochs=epochs, local_steps=local_steps, batch_size=BATCH, seed=SEED)
    numbers = {}
    for i, K in enumerate(settings.steps_of(np.array(SIZES)).tolist()):
        for t in range(ROUNDS):
            order, sizes = seeding.batch_order(seeding.generator(SEED, seeding.BATCHES, t, i), SIZES[i], K, BATCH)
            numbers[t, i] = np.split(order, np.cumsum(sizes)[:-1])
    return Problem(x0, data, numbers)


def network(w: np.ndarray, dtype: torch.dtype = torch.float64) -> nn.Module:
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).to(dtype)
    with torch.no_grad():
        for parameter, z in zip(model.parameters(), split(w), strict=True):
            parameter.copy_(torch.as_tensor(z))
    return model


def trajectory(
    name: str,
    options: dict[str, Any],
    *,
    cohorts: list[list[int]] = PARTIAL,
    equal: bool = False,
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> np.ndarray:
    """The global weights after each round, [T, d]: fresh runs of 1, 2, ... rounds."""
    p = problem(EQUAL_STEPS if equal else None)
    fed = fk.Federation.from_arrays(p.data)
    weights = []
    for rounds in range(1, len(cohorts) + 1):
        run = fk.train(
            network(p.x0, dtype), fed, fk.algorithm(name, **options), rounds=rounds, cohort=cohorts, seed=SEED,
            local_epochs=None if equal else EPOCHS, local_steps=EQUAL_STEPS if equal else None, batch_size=BATCH,
            loss=nn.functional.cross_entropy, engine="sequential", progress=False, **settings,
        )  # fmt: skip
        weights.append(run.params.double().numpy())
    return np.stack(weights)
