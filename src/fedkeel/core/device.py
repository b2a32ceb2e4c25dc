"""The border between host memory and the device on which a method computes.

The data, client memory and checkpoints lie in host memory. A method computes on the model's device. Everything that a method
receives, or returns, passes one of the functions of this file, which moves it and checks where it is. A run on the CPU has
no border and calls none of them.

Copies to and from a CUDA device go through page-locked ("pinned") host memory, so that the host need not wait for them.
torch keeps such memory until the copy is done. Only one thing must not be forgotten: before the host reads what `to_host`
returns, it must wait for the device, by `wait_for` or by reading any later result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.round import Round
from fedkeel.errors import describe

HOST = torch.device("cpu")

# Moving --------------------------------------------------------------------------------------------------------------


def to_device(z: Tensor, device: torch.device) -> Tensor:
    """z on the device; z itself if it is there already."""
    if z.device == device:
        return z
    if _can_pin(device) and z.device.type == "cpu":
        return z.pin_memory().to(device, non_blocking=True)
    return z.to(device)


def record_to(record: Any, device: torch.device) -> Any:
    """A record whose tensors are on the device: the same one if they are there already. None for None."""
    if record is None or _all_on(record, device):
        return record
    return type(record)(*(to_device(z, device) for z in record))


def _all_on(record: Any, device: torch.device) -> bool:
    # A loop, because `all` takes twice as long, and this runs several times for every client.
    for z in record:  # noqa: SIM110
        if z.device != device:
            return False
    return True


def to_host(record: Any) -> Any:
    """A record whose tensors are in host memory; None for None. The host may not read it before it has waited for the
    device (see above)."""
    if record is None or _all_on(record, HOST):
        return record
    return type(record)(*(_on_host(z) for z in record))


def _on_host(z: Tensor) -> Tensor:
    if z.device.type == "cpu":
        return z
    if _can_pin(z.device):
        return torch.empty(z.shape, dtype=z.dtype, pin_memory=True).copy_(z, non_blocking=True)
    return z.cpu()


def wait_for(device: torch.device) -> None:
    """Returns when the device has done what this thread gave it to do."""
    if _can_pin(device):
        torch.cuda.current_stream(device).synchronize()


def stacked_on(records: Sequence[Any], device: torch.device) -> Any:
    """S records in host memory -> one record of [S, ...] on the device."""
    pinned = _can_pin(device)
    fields = []
    for rows in zip(*records, strict=True):
        out = torch.empty((len(rows), *rows[0].shape), dtype=rows[0].dtype, pin_memory=True) if pinned else None
        fields.append(torch.stack(rows, out=out).to(device, non_blocking=pinned))
    return type(records[0])(*fields)


def round_on(r: Round, device: torch.device) -> Round:
    """The facts of a round with all tensors on the device, so that a server may combine them with uploads."""
    if device.type == "cpu":
        return r

    def moved(z: Tensor) -> Tensor:
        # MPS has no float64.
        return to_device(z.float() if device.type == "mps" and z.is_floating_point() else z, device)

    drawn = SimpleNamespace(**{name: moved(z) for name, z in vars(r.drawn).items()})
    facts: dict[str, Any] = {name: moved(getattr(r, name)) for name in ("ids", "K", "p", "weight", "delay")}
    return dataclasses.replace(r, **facts, drawn=drawn)


def _can_pin(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_initialized()


# Checking ------------------------------------------------------------------------------------------------------------


def at_border(what: str, record: Any, device: torch.device) -> Any:
    """The record on the device, for a method that computes there. what: the record's name for the error message."""
    if record is None or _all_on(record, device):
        return record
    moved = record_to(record, device)
    check_device(what, moved, device)
    return moved


def check_device(what: str, record: Any, device: torch.device) -> None:
    """Raises if a tensor of the record is not on the device. It compares addresses only, so it never waits."""
    if record is None or _all_on(record, device):
        return
    for name, z in record._asdict().items():
        if z.device != device:
            raise ValueError(f"{what}: the field {name} is on {z.device}, but the model is on {device}")


def check_round(r: Round, device: torch.device) -> None:
    """The same for the facts of a round."""
    parts = {"ids": r.ids, "K": r.K, "p": r.p, "weight": r.weight, "delay": r.delay, **vars(r.drawn)}
    for name, z in parts.items():
        if z.device != device:
            raise ValueError(f"round: {name} is on {z.device}, but the model is on {device}")


# Choosing ------------------------------------------------------------------------------------------------------------


def named_devices(names: Sequence[str]) -> tuple[torch.device, ...]:
    """The devices that `devices=` names; ["all"] means every GPU of this machine."""
    shown = ",".join(names)
    if list(names) == ["all"]:
        names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        if not names:
            raise ValueError("devices = 'all' is not allowed here: torch finds no GPU")
    found = []
    for name in names:
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ValueError(f"devices = {shown!r} is not allowed: {describe(error)}") from None
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(
                f"devices = {shown!r}: torch finds {torch.cuda.device_count()} GPUs here, so there is no {name}"
            )
        found.append(device if device.type == "cpu" else torch.device(device.type, device.index or 0))
    return tuple(found)
