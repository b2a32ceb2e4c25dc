"""A checkpoint: the state of a run in one safetensors file, which is replaced atomically.

Client memory lies in another file beside it (store.py).

A checkpoint also holds the run's identity: settings, method, model and data. A run that resumes must have the same one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import form
from fedkeel.engine.settings import Settings, alike
from fedkeel.files import write_atomically

FORMAT = "fedkeel-checkpoint-1"
# Settings that checkpoints of version 0.1.0 lack, and what such a run had in their place.
ADDED = {"memory_format": "contiguous", "precision": None}


def save_checkpoint(path: Path, t: int, server: Any, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """t: the next round.  tensors: the model's buffers and the index of the store.  facts: all else, kept as JSON."""
    named = {f"server.{name}": z.detach().cpu().contiguous() for name, z in server._asdict().items()}
    # safetensors refuses tensors that share memory, and an initial record may hold the same zeros twice.
    named = {name: z.clone() for name, z in (named | tensors).items()}
    metadata = {"format": FORMAT, "round": str(t), "facts": json.dumps(facts, default=_number)}
    write_atomically(path, save(named, metadata))


def _number(value: Any) -> Any:
    """numpy's numbers as Python's: settings may hold them, and JSON does not know them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be part of a checkpoint")


def load_checkpoint(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """(next round, tensors, facts) of a checkpoint file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"checkpoint: {path} was not written by this version of fedkeel")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"checkpoint: {path} is damaged or not a checkpoint ({' '.join(str(error).split())})") from error
    return int(metadata["round"]), tensors, json.loads(metadata["facts"])


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
    settings: Settings, algo: Algorithm, model: FlatModel, initial: Any, t: int, data: str | None, frozen: str | None
) -> dict[str, Any]:
    """What must not change between a checkpoint and the run that resumes from it.

    initial: the record of a new client.  t: the next round.  data, frozen: fingerprints of data and frozen parameters.
    """
    how = {"dtype": str(model.dtype), "memory_format": model.memory_format, "precision": settings.precision}
    kept = settings.identity() | how
    if isinstance(kept["cohort"], Sequence):  # a list of clients per round: later rounds may still change
        past = [list(ids) for ids in kept["cohort"]][:t]
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
            theirs = ADDED | theirs
        if part in ("settings", "algorithm") and isinstance(theirs, dict):
            key = next((key for key in ours if not alike(key, theirs.get(key), ours[key])), None)
            if key is not None:
                why = ", by the method's theory: rounds, clients, cohort or local steps are others" if key in theory else ""
                raise ValueError(f"resume: {key} is {ours[key]!r} now, but {theirs.get(key)!r} in the checkpoint{why}")
        if theirs != ours:
            raise ValueError(f"resume: the {part} differ from those of the checkpoint")
