"""Which methods allow secure aggregation and differential privacy, found out by running their server step, and Flower's
local differential privacy for those that do."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod
from torch import Tensor

from fedkeel.core.algorithm import STEPS, Algorithm, Plan
from fedkeel.core.flat import Layers
from fedkeel.core.trial import exchanges_of, trial_upload
from fedkeel.deploy.messages import RAISED, RAW, Refused, to_array

HARMLESS = (message_size_mod, arrays_size_mod)
CENTRAL = (fixedclipping_mod, adaptiveclipping_mod)


class Sealed:
    """An upload that nobody may look into: a weighted sum over the clients is all that can be had of it."""

    def __init__(self, like: Tensor) -> None:
        self.like = like


class SumsOnly:
    """The facts of a round, where uploads can only be summed."""

    def __init__(self) -> None:
        one = torch.ones(1, dtype=torch.float64)
        self.t, self.N, self.S, self.K, self.K_mean, self.last = 0, 1, 1, one, 1.0, True
        self.ids, self.p, self.weight, self.drawn = torch.zeros(1, dtype=torch.int64), one, one, SimpleNamespace(tracks=one)

    def avg(self, z: Any) -> Tensor:
        if not isinstance(z, Sealed):
            raise TypeError("an upload was changed before it was summed")
        return z.like.clone()

    share = avg


def needs_each(algo: Algorithm) -> str | None:
    """Why the server needs each client's upload and not just weighted sums of them; None if sums are enough."""
    algo = algo.plan(Plan(N=1, S=1, K=1.0, T=1))
    layers = Layers([2, 1])
    server, _ = algo.init(torch.zeros(3))
    for stage in exchanges_of(algo):
        up = trial_upload(algo, stage, layers, torch.float32)
        try:
            getattr(algo, STEPS[stage])(server, type(up)(*(Sealed(z) for z in up)), SumsOnly())
        except (TypeError, AttributeError):
            return f"its server step looks at each client's {' and '.join(up._fields)}, not just at their weighted sums"
    return None


def no_noise(algo: Algorithm) -> str | None:
    """Why uploads must not be clipped and made noisy by Flower's modifiers; None if they may.

    These modifiers know one array, the model, and change its difference from the model that the server sent.
    """
    if why := needs_each(algo):
        return why
    algo = algo.plan(Plan(N=1, S=1, K=1.0, T=1))
    if exchanges_of(algo) != ["client"]:
        return "its clients also send gradients, in an exchange of their own, which the modifier does not know"
    sent = trial_upload(algo, "client", Layers([2, 1]), torch.float32)._fields
    if sent != ("dx",):
        return f"its clients send {' and '.join(sent)}; the modifier protects a change of the model, dx, and nothing else"
    if algo.init(torch.zeros(3))[1] is not None:
        return "its clients keep records that would go on as if their uploads had arrived without clipping and noise"
    return None


def protected(algo: Algorithm, mods: Sequence[Any]) -> tuple[list[Any], bool]:
    """Flower's modifiers, fitted to our messages, and whether any of them protects privacy; refuses what is not valid."""
    fitted, protects = [], False
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if isinstance(mod, LocalDpMod):
            if why := no_noise(algo):
                raise ValueError(f"mods: LocalDpMod is not valid for {algo.name}: {why}")
            fitted.append(Shifted(mod))
            protects = True
        elif mod in CENTRAL:
            raise ValueError(
                f"mods: {name} works only with Flower's strategy that adds the noise on the server, and fedkeel's "
                "server is not a Flower strategy; use LocalDpMod"
            )
        elif name.startswith("secagg"):
            why = needs_each(algo) or "Flower has it for its older strategies only, not for the messages that are used here"
            raise ValueError(f"mods: {name} is not valid for {algo.name}: {why}")
        elif mod in HARMLESS:
            fitted.append(mod)
        else:
            raise ValueError(f"mods: {name} is not known to leave uploads as they are; see docs/deploy.md")
    return fitted, protects


class Shifted:
    """Shows a modifier what it expects: the model that came, and the model that goes, under the same name."""

    def __init__(self, mod: LocalDpMod) -> None:
        self.mod = mod

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        x = _numpy(message.content.array_records["down"]["x"])
        replies: list[Message] = []

        def inner(_: Message, context: Context) -> Message:
            replies.append(call_next(message, context))
            if replies[0].has_error():
                return replies[0]
            dx = _numpy(replies[0].content.array_records["up"]["dx"])
            return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x + dx)})}), reply_to=message)

        shown = Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)})}), reply_to=message)
        changed = self.mod(shown, context, inner)
        if changed.has_error():
            return changed
        if replies[0].content.array_records.get("buffers"):
            return Message(
                Error(RAISED, "LocalDpMod is not valid for models with buffers, which it does not know"), reply_to=message
            )
        noisy = np.asarray(changed.content.array_records["arrays"]["x"].numpy(), dtype=x.dtype)
        replies[0].content["up"] = ArrayRecord({"dx": to_array(torch.from_numpy(noisy - x))})
        return replies[0]


def _numpy(array: Array) -> np.ndarray:
    if array.stype != RAW:
        raise Refused(f"x is stored as {array.stype[:40]!r}, not as {RAW!r}")
    return np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape)
