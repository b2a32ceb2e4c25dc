"""The state of a run on disk: one safetensors file, replaced atomically, beside the file of client memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkeel.engine.settings import alike
from fedkeel.files import write_atomically

FORMAT = "fedkeel-checkpoint-1"


def save_checkpoint(path: Path, t: int, server: Any, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """t: the next round; tensors: buffers and store index; facts: config, history and the like, as JSON."""
    named = {f"server.{name}": z.detach().cpu().contiguous() for name, z in server._asdict().items()}
    # safetensors refuses tensors that share memory, and a first record may hold the same zeros twice
    named = {name: z.clone() for name, z in (named | tensors).items()}
    metadata = {"format": FORMAT, "round": str(t), "facts": json.dumps(facts, default=_number)}
    write_atomically(path, save(named, metadata))


def _number(value: Any) -> Any:
    """Settings may be numpy's numbers, which JSON does not know."""
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
    """The server record in a checkpoint, shaped like the template."""
    values = []
    for name, z in template._asdict().items():
        saved = tensors.get(f"server.{name}")
        if saved is None or saved.shape != z.shape or saved.dtype != z.dtype:
            raise ValueError(f"checkpoint: its server record does not fit this run (field {name})")
        values.append(saved.to(device, copy=True))  # where torch puts it: products depend on where the numbers lie
    return type(template)(*values)


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], theory: Collection[str] = ()) -> None:
    """Raises if the run of a checkpoint was another one: with other settings, another method, model or data.

    theory: hyper-parameters that were not given, but follow from the size of the run.
    """
    for part, ours in now.items():
        theirs = then.get(part)
        if part in ("settings", "algorithm") and isinstance(theirs, dict):
            key = next((key for key in ours if not alike(key, theirs.get(key), ours[key])), None)
            if key is not None:
                why = ", by the method's theory: rounds, clients, cohort or local steps are others" if key in theory else ""
                raise ValueError(f"resume: {key} is {ours[key]!r} now, but {theirs.get(key)!r} in the checkpoint{why}")
        if theirs != ours:
            raise ValueError(f"resume: the {part} differ from those of the checkpoint")
