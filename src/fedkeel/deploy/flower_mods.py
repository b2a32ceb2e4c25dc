"""Flower's modifiers (mods) of a client app: which are valid for a method, and local differential privacy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod

from fedkeel.channel.validity import why_sums_are_not_enough
from fedkeel.core.algorithm import Algorithm
from fedkeel.deploy.arrays import check_raw, to_array
from fedkeel.deploy.errors import APP_RAISED
from fedkeel.deploy.privacy import why_noise_is_not_allowed

MEASURING = (message_size_mod, arrays_size_mod)  # leave messages as they are
CENTRAL_NOISE = (fixedclipping_mod, adaptiveclipping_mod)  # need a Flower strategy that adds the noise


def adapted_mods(method: Algorithm, mods: Sequence[Any]) -> list[Any]:
    """The modifiers, adapted to fedkeel's messages. Refuses those that are not valid for the method."""
    return [_adapted(method, mod) for mod in mods]


def hides_uploads(mods: Sequence[Any]) -> bool:
    """Does a modifier protect privacy? Then the loss, which it does not protect, must not be sent."""
    return any(isinstance(mod, LocalDpMod) for mod in mods)


def _adapted(method: Algorithm, mod: Any) -> Any:
    name = getattr(mod, "__name__", type(mod).__name__)
    if isinstance(mod, LocalDpMod):
        if why := why_noise_is_not_allowed(method):
            raise ValueError(f"mods: LocalDpMod is not valid for {method.name}: {why}")
        return LocalDpAdapter(mod)
    if mod in CENTRAL_NOISE:
        raise ValueError(
            f"mods: {name} works only with Flower's strategy that adds the noise on the server, and fedkeel's "
            "server is not a Flower strategy; use LocalDpMod"
        )
    if name.startswith("secagg"):
        why = why_sums_are_not_enough(method)
        why = why or "Flower offers it for its older strategies only, not for the messages that fedkeel uses"
        raise ValueError(f"mods: {name} is not valid for {method.name}: {why}")
    if mod not in MEASURING:
        raise ValueError(f"mods: {name} is not known to leave uploads as they are; see docs/deploy.md")
    return mod


class LocalDpAdapter:
    """Runs LocalDpMod on fedkeel's messages.

    The modifier expects the model before and after training under the same name. fedkeel sends x and gets
    back dx, so the modifier sees x and x + dx, and dx is computed again from what it returns.
    """

    def __init__(self, mod: LocalDpMod) -> None:
        self.mod = mod

    def __call__(self, message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        x = _to_numpy(message.content.array_records["down"]["x"], "x")
        original: list[Message] = []

        def train(_: Message, context: Context) -> Message:
            reply = call_next(message, context)
            original.append(reply)
            if reply.has_error():
                return reply
            return _model_message(x + _to_numpy(reply.content.array_records["up"]["dx"], "dx"), message)

        changed = self.mod(_model_message(x, message), context, train)
        if changed.has_error():
            return changed
        (reply,) = original
        if reply.content.array_records.get("buffers"):
            why = "LocalDpMod is not valid for models with buffers, because it does not protect them"
            return Message(Error(APP_RAISED, why), reply_to=message)
        noisy = np.asarray(changed.content.array_records["arrays"]["x"].numpy(), dtype=x.dtype)
        reply.content["up"] = ArrayRecord({"dx": to_array(torch.from_numpy(noisy - x))})
        return reply


def _model_message(x: np.ndarray, reply_to: Message) -> Message:
    return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)})}), reply_to=reply_to)


def _to_numpy(array: Array, name: str) -> np.ndarray:
    check_raw(array, name)
    return np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape)
