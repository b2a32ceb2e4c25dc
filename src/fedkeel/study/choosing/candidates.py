"""Which methods are candidates: the task and the user's constraints exclude the others, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from fedkeel.core.algorithm import Algorithm, make
from fedkeel.core.features import check_inside
from fedkeel.core.flat import Layers
from fedkeel.core.records import down_record, exchanges_of, floats, trial_upload
from fedkeel.core.sums import only_plain, sums_asked
from fedkeel.data.federation import Federation
from fedkeel.engine.settings import Settings
from fedkeel.errors import nearest, refuse
from fedkeel.study.running.space import planned


@dataclass(frozen=True)
class Constraints:
    """What a method must not exceed. Floats are numbers of 4 bytes."""

    stateless: bool = False  # clients keep nothing between rounds
    secure_sums: bool = False  # the server needs sums of uploads only, so secure aggregation is possible
    floats_per_round: float | None = None  # up and down, of one client
    gradients_per_step: float | None = None
    memory_per_client: float | None = None  # floats that a client keeps between rounds

    @classmethod
    def read(cls, given: Mapping[str, Any] | Constraints | None) -> Constraints:
        if isinstance(given, Constraints):
            return given
        known = {one.name for one in fields(cls)}
        for key, value in (given or {}).items():
            if key not in known:
                raise ValueError(f"constraints: unknown name {key!r}{nearest(key, known)}")
            if key in ("stateless", "secure_sums"):
                if not isinstance(value, bool):
                    raise refuse(f"constraints: {key}", value, "true or false")
            elif value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise refuse(f"constraints: {key}", value, "a number >= 0")
        return cls(**dict(given or {}))


@dataclass(frozen=True)
class Cost:
    """What a method costs one client, counted from its records."""

    floats: int  # up and down in a round
    memory: int  # floats that it keeps between rounds
    gradients: int  # of a local step


def cost_of(method: Algorithm, layers: Layers) -> Cost:
    server, memory = method.init(torch.zeros(sum(layers.sizes)))
    stages = [stage for stage in exchanges_of(method) if stage != "warmup"]
    up = sum(floats(trial_upload(method, stage, layers, torch.float32)) for stage in stages)
    return Cost(up + floats(down_record(method, server)), floats(memory), method.facts.gradients)


def why_excluded(
    label: str, table: Mapping[str, Any], settings: Settings, fed: Federation, model: nn.Module, limits: Constraints
) -> str | None:
    """Why a method is no candidate; None if it is one."""
    values = {key: z for key, z in table.items() if key not in ("algorithm", "cost", "over")}
    values = {key: z[0] if isinstance(z, list) else z for key, z in values.items()}
    method = make(table.get("algorithm", label), **values)
    layers = Layers([p.numel() for p in model.parameters() if p.requires_grad])
    try:
        settings.check_with(method, len(fed))
        check_inside(model, method.facts.needs, method.name)
        method = planned(method, settings, fed, layers, settings.rounds)
    except ValueError as error:
        return str(error).removeprefix(f"{method.name}: ")
    if method.facts.private and not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in model.modules()):
        return "the model has no batch normalisation, which is what its clients keep"
    return _over_limit(method, cost_of(method, layers), layers, limits)


def _over_limit(method: Algorithm, cost: Cost, layers: Layers, limits: Constraints) -> str | None:
    if limits.stateless and cost.memory:
        return f"its clients keep {cost.memory:,} floats between rounds"
    if limits.secure_sums and not all(only_plain(sums_asked(method, stage, layers)) for stage in exchanges_of(method)):
        return "its server needs single uploads, not only their sums"
    for what, found, most in (
        ("sends {:,} floats per round and client", cost.floats, limits.floats_per_round),
        ("computes {:,} gradients per step", cost.gradients, limits.gradients_per_step),
        ("keeps {:,} floats at each client", cost.memory, limits.memory_per_client),
    ):
        if most is not None and found > most:
            return f"it {what.format(found)}; at most {most:,g} are allowed"
    return None
