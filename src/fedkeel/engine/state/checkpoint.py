"""A checkpoint: the state of a run in one safetensors file, with a checksum of every tensor.

It also holds the run's identity: settings, method, model, loss and data. A run that resumes must have the same one. Client
memory lies in another file (store.py), and so does the history (history_file.py); the checkpoint has their checksums.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import form
from fedkeel.engine.best_round import BestRound
from fedkeel.engine.settings import Settings, alike
from fedkeel.engine.state.checksums import checksum, fits
from fedkeel.errors import Damaged
from fedkeel.files import write_atomically

FORMAT = "fedkeel-checkpoint-2"
OLD_FORMAT = "fedkeel-checkpoint-1"  # of version 0.1.0: no checksums, and the history in the header
FACTS = "facts"  # this tensor holds, as JSON, everything in the checkpoint that is not a tensor
# Settings that checkpoints of version 0.1.0 lack, and what such a run had in their place.
ADDED = {"memory_format": "contiguous", "precision": None, "lr_schedule": None, "validation": 0.0}
ADDED |= {"privacy": None, "uplink": None, "downlink": None, "aggregation": "mean", "attack": None}
UNREADABLE = (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError, OverflowError, RecursionError)


class Part(Protocol):
    """Something with a state of its own that a checkpoint keeps, such as a queue of events or the state of a callback.

    `Trainer.parts` has them by name. What `saved` returns comes back to `restore` of the part with the same name.
    """

    def saved(self) -> dict[str, Any]:
        """name -> a tensor, or a value that JSON can hold."""

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to this state. A checkpoint from before the part existed restores nothing."""


@dataclass
class RunState:
    """What changes from round to round in a run."""

    server: Any  # the server record
    buffers: Tensor  # [b] the model's buffers
    warmed_up: bool  # no warm-up is left to do
    t: int = 0  # the next round
    history: list[dict[str, Any]] = field(default_factory=list)  # one row per round
    warmup_columns: dict[str, Any] = field(default_factory=dict)  # of round 0: what the warm-up cost, and who failed
    best: BestRound | None = None  # on the validation data
    stopped: str = ""  # why the run ended before its last round


@dataclass
class Checkpoint:
    t: int  # the next round
    tensors: dict[str, Tensor]  # server record, model's buffers, index of the store
    facts: dict[str, Any]  # everything that is not a tensor
    parts: dict[str, dict[str, Any]]  # name -> what its `saved` returned


def save_checkpoint(
    path: Path,
    previous: Path,
    t: int,
    server: Any,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    parts: Mapping[str, Part],
) -> None:
    """Replaces the checkpoint; the old one gets the name `previous`. t: the next round."""
    named = {f"server.{name}": z for name, z in server._asdict().items()} | tensors
    values: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        state = part.saved()
        named |= {f"part.{name}.{key}": z for key, z in state.items() if isinstance(z, Tensor)}
        values[name] = {key: z for key, z in state.items() if not isinstance(z, Tensor)}
    # safetensors refuses tensors that share memory, and an initial record may hold the same zeros twice.
    named = {name: z.detach().to("cpu", copy=True).contiguous() for name, z in named.items()}
    text = json.dumps({**facts, "parts": values}, default=_number).encode()
    named[FACTS] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    sums = {name: checksum(z) for name, z in named.items()}
    metadata = {"format": FORMAT, "round": str(t), "sums": json.dumps(sums), "seal": _seal(t, sums)}
    write_atomically(path, save(named, metadata), keep=previous)


def _seal(t: int, sums: Mapping[str, str]) -> str:
    """A checksum of the header."""
    return f"{zlib.crc32(json.dumps([FORMAT, t, sums], sort_keys=True).encode()):08x}"


def _number(value: Any) -> Any:
    """numpy's numbers as Python's: settings may hold them, and JSON does not know them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be part of a checkpoint")


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint file. Raises Damaged if it does not hold what was written."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") not in (FORMAT, OLD_FORMAT):
                raise Damaged(f"checkpoint: {path} was not written by this version of fedkeel")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata["format"] == OLD_FORMAT:
            return Checkpoint(int(metadata["round"]), tensors, json.loads(metadata["facts"]), {})
        _check_sums(int(metadata["round"]), tensors, metadata)
        facts = json.loads(tensors.pop(FACTS).numpy().tobytes())
    except Damaged:
        raise
    except UNREADABLE as error:
        raise Damaged(f"checkpoint: {path} is damaged or not a checkpoint ({' '.join(str(error).split())[:200]})") from error
    parts = facts.pop("parts")
    for name, values in parts.items():
        prefix = f"part.{name}."
        values |= {key.removeprefix(prefix): z for key, z in tensors.items() if key.startswith(prefix)}
    return Checkpoint(int(metadata["round"]), tensors, facts, parts)


def _check_sums(t: int, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
    sums = json.loads(metadata["sums"])
    if metadata["seal"] != _seal(t, sums) or sums.keys() != tensors.keys():
        raise ValueError("the checksum of its header is wrong")
    for name, z in tensors.items():
        if not fits(z, sums[name]):
            raise ValueError(f"the checksum of {name} is wrong")


def round_of(path: Path) -> int | None:
    """The next round of a checkpoint, by its header; None if that cannot be read."""
    try:
        with safe_open(path, framework="np") as file:
            return int(file.metadata()["round"])
    except UNREADABLE:
        return None


def server_from(tensors: dict[str, Tensor], template: Any, device: torch.device) -> Any:
    """The server record in a checkpoint. Its form must be that of the template."""
    values = []
    for name, z in template._asdict().items():
        saved = tensors.get(f"server.{name}")
        if saved is None or saved.shape != z.shape or saved.dtype != z.dtype:
            raise ValueError(f"checkpoint: its server record does not fit this run (field {name})")
        values.append(saved.to(device, copy=True))  # in memory that torch aligns: BLAS may round differently elsewhere
    return type(template)(*values)


def run_identity(
    settings: Settings,
    algo: Algorithm,
    model: FlatModel,
    initial: Any,
    t: int,
    data: str | None,
    frozen: str | None,
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """What must not change between a checkpoint and the run that resumes from it.

    initial: the record of a new client.  t: the next round.  data, frozen: fingerprints of data and frozen parameters.
    conditions: who takes part, and the like.
    """
    how = {"dtype": str(model.dtype), "memory_format": model.memory_format, "precision": settings.precision}
    kept = settings.identity() | how | {"validation": settings.validation} | dict(conditions)
    kept["lr_schedule"] = None
    if settings.lr_schedule is not None:
        from fedkeel.engine.schedule import schedule_identity

        kept["lr_schedule"] = schedule_identity(settings.lr_schedule, settings.rounds, t)
    if isinstance(kept["cohort"], Sequence):  # a list of clients per round: later rounds may still change
        past = [list(ids) if isinstance(ids, Sequence) else ids for ids in kept["cohort"]][:t]
        kept["cohort"] = hashlib.sha256(repr(past).encode()).hexdigest()
    shapes = [[name, list(shape)] for name, shape in zip(model.names, model.shapes, strict=True)]
    method = {"name": algo.name, **dataclasses.asdict(algo)}  # type: ignore[call-overload]
    identity = {"settings": kept, "algorithm": method, "model": shapes, "data": data, "client records": form(initial)}
    return identity | ({"frozen parameters": frozen} if frozen else {})


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], theory: Collection[str] = ()) -> None:
    """Raises if two identities differ.

    theory: hyper-parameters that the user did not give, because they follow from the size of the run.
    """
    for part, ours in now.items():
        theirs = then.get(part)
        if part == "settings" and isinstance(theirs, dict):
            # A condition that the checkpoint does not know was off. Version 0.1.0 did not write down the loss.
            unknown = ADDED | {"loss": ours.get("loss")}
            theirs = {key: unknown.get(key) for key in ours} | theirs
        if part in ("settings", "algorithm") and isinstance(theirs, dict):
            key = next((key for key in ours if not alike(key, theirs.get(key), ours[key])), None)
            if key is not None:
                why = ", by the method's theory: rounds, clients, cohort or local steps are others" if key in theory else ""
                raise ValueError(f"resume: {key} is {ours[key]!r} now, but {theirs.get(key)!r} in the checkpoint{why}")
        if theirs != ours:
            raise ValueError(f"resume: the {part} differ from those of the checkpoint")
