"""The files of a model: its weights, and its layers if they are those of torch or fedkeel.

Nothing here runs code from a file. A model with layers of the user's own classes must be passed to `read_model`.
"""

from __future__ import annotations

import copy
import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from fedkeel.errors import refuse
from fedkeel.files import write_atomically

MODEL = "model.safetensors"  # the final weights
LAYERS = "layers.pt"  # the modules of the model without their weights
OURS = ("torch.nn.modules.", "fedkeel.models.")  # modules of these packages are rebuilt from LAYERS


def write_model(model: nn.Module, path: Path) -> bytes:
    """Writes the weights, and the layers if `read_model` can rebuild them -> the content of the file with the weights."""
    weights = {name: z.detach().cpu().contiguous().clone() for name, z in model.state_dict().items()}
    saved = save(weights)
    write_atomically(path / MODEL, saved)
    if all(f"{type(part).__module__}.".startswith(OURS) for part in model.modules()):
        content = io.BytesIO()
        torch.save(copy.deepcopy(model).to("meta"), content)
        if _classes(content.getvalue()) is not None:
            write_atomically(path / LAYERS, content.getvalue())
    return saved


def read_model(folder: Path, model: nn.Module | Callable[[], nn.Module] | None) -> nn.Module:
    """A module whose weights do not matter."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if model is not None:
        if not callable(model) or not isinstance(made := model(), nn.Module):
            raise refuse("model", model, "a torch.nn.Module or a function that makes one")
        return made
    content = (folder / LAYERS).read_bytes() if (folder / LAYERS).exists() else b""
    classes = _classes(content) if content else None
    if classes is None:
        raise ValueError(
            f"open: {folder} does not hold the layers of the model; pass model=, the model or a function that makes it"
        )
    with torch.serialization.safe_globals(classes):
        found: nn.Module = torch.load(io.BytesIO(content), weights_only=True)
    return found.to_empty(device="cpu")


def _classes(content: bytes) -> list[Any] | None:
    """The classes that a file of layers names; None if one of them is neither torch's nor fedkeel's."""
    found = []
    for name in torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)):
        place, _, attribute = name.rpartition(".")
        if not f"{place}.".startswith(OURS):
            return None
        one = getattr(importlib.import_module(place), attribute, None)
        if not (isinstance(one, type) and issubclass(one, nn.Module)):
            return None
        found.append(one)
    return found
