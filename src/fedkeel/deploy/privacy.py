"""Which methods allow that the server sees sums of uploads only, and which allow noise on uploads.

No method declares this. It follows from the method's code: the server step runs once on sealed uploads, which
can be summed and nothing else. If the step does anything else with an upload, it fails, and the method needs
single uploads. Both functions return the reason against it as words for an error message, or None if the
method allows it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.algorithm import STEPS, Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.records import Record, exchanges_of, trial_upload

LAYERS = Layers([2, 1])  # of the smallest model that is not trivial
D = sum(LAYERS.sizes)


def why_sums_are_not_enough(method: Algorithm) -> str | None:
    """Why the server needs single uploads. None: sums are enough, so secure aggregation would be valid."""
    method = _planned(method)
    for stage in exchanges_of(method):
        up = _upload(method, stage)
        if not _works_on_sums(method, stage, up):
            return f"its server step looks at each client's {' and '.join(up._fields)}, not just at their weighted sums"
    return None


def why_noise_is_not_allowed(method: Algorithm) -> str | None:
    """Why a client must not clip its upload and add noise to it. None: it may.

    Flower's modifiers protect one array, the model: they change its difference from the model that the server
    sent.
    """
    if why := why_sums_are_not_enough(method):
        return why
    method = _planned(method)
    if exchanges_of(method) != ["client"]:
        return "its clients also send gradients, in a separate exchange, and the modifier does not protect those"
    sent = _upload(method, "client")._fields
    if sent != ("dx",):
        return f"its clients send {' and '.join(sent)}; the modifier protects a change of the model, dx, and nothing else"
    if method.init(torch.zeros(D))[1] is not None:
        return "its clients keep records, which would go on as if uploads had arrived without clipping and noise"
    return None


def _planned(method: Algorithm) -> Algorithm:
    """The method for the smallest run: one client, one round."""
    return method.plan(Plan(N=1, S=1, K=1.0, T=1))


def _upload(method: Algorithm, stage: str) -> Record:
    return trial_upload(method, stage, LAYERS, torch.float32)


def _works_on_sums(method: Algorithm, stage: str, up: Record) -> bool:
    """Does the server half of this exchange succeed if it can only sum uploads?"""
    server, _ = method.init(torch.zeros(D))
    sealed = type(up)(*(SealedUpload(z) for z in up))
    try:
        getattr(method, STEPS[stage])(server, sealed, SumsOnlyRound())
    except (TypeError, AttributeError):  # raised if a sealed upload is used as a tensor
        return False
    return True


class SealedUpload:
    """Takes the place of a tensor in an upload. It supports no operation; only SumsOnlyRound can use it."""

    def __init__(self, like: Tensor) -> None:
        self.like = like


class SumsOnlyRound:
    """Takes the place of a Round with one client. Its sums accept sealed uploads and nothing else."""

    def __init__(self) -> None:
        one = torch.ones(1, dtype=torch.float64)
        self.t, self.N, self.S, self.last = 0, 1, 1, True
        self.K, self.K_mean = one, 1.0
        self.ids, self.p, self.weight = torch.zeros(1, dtype=torch.int64), one, one
        self.drawn = SimpleNamespace(tracks=one)

    def avg(self, z: Any) -> Tensor:
        if not isinstance(z, SealedUpload):
            raise TypeError("the server step changed an upload before it was summed")
        return z.like.clone()

    share = avg
