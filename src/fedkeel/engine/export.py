"""The model of a run in formats of other programs: safetensors, a folder of Hugging Face, ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from fedkeel.errors import refuse
from fedkeel.files import guarded, write_atomically


def export_model(model: nn.Module, path: Path, example: Any) -> Path:
    """Writes the model; the end of the path says in which format. example: a batch of inputs, for ONNX."""
    guarded(path, lambda: path.parent.mkdir(parents=True, exist_ok=True))
    if path.suffix == ".safetensors":
        # Tied weights are written once per name: safetensors refuses tensors that share memory.
        weights = {name: z.detach().cpu().contiguous().clone() for name, z in model.state_dict().items()}
        write_atomically(path, save(weights))
    elif path.suffix == ".onnx":
        _onnx(model, path, example)
    elif not path.suffix:
        _folder(model, path)
    else:
        raise refuse("path", str(path), "a file .safetensors or .onnx, or a folder for Hugging Face")
    return path


def _onnx(model: nn.Module, path: Path, example: Any) -> None:
    try:
        import onnxscript  # noqa: F401  # torch needs it
    except ImportError:
        raise ImportError("export to ONNX needs the packages onnx and onnxscript: pip install 'fedkeel[onnx]'") from None
    if example is None:
        raise ValueError("example: ONNX needs a batch of inputs, such as fed.test[0][:2]; pass example=")
    device = next(model.parameters()).device
    batch = torch.export.Dim("batch")
    program: Any = torch.onnx.export(model, (example.to(device),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    guarded(path, lambda: program.save(str(path)))


def _folder(model: Any, path: Path) -> None:
    if not hasattr(model, "save_pretrained"):
        raise ValueError(
            f"export: {type(model).__name__} is not a model of transformers or peft, so it has no folder of Hugging Face; "
            "choose a path that ends in .safetensors"
        )
    model.save_pretrained(str(path))
