"""junkangLiu0/FedMuon: the authors' local updates of FedMuon and FedAdamW, and their server step.

Their program parses arguments, downloads data and starts Ray when it is imported. Only the functions named below are
taken from it. Its Newton-Schulz iteration runs in float64 instead of bfloat16.
"""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_side
from problem import EQUAL_STEPS, PARTIAL, Problem, serve
from torch import Tensor, nn

CLONE = Path(sys.argv[3])
sys.path.insert(0, str(CLONE))
torch.set_default_dtype(torch.float64)
torch.Tensor.bfloat16 = lambda self: self  # type: ignore[method-assign, assignment, misc]

WANTED = {"get_param_name", "update_FedMuon", "update_FedAdamW", "apply_weights_FedLADA"}


def functions(**names: Any) -> dict[str, Any]:
    """The wanted functions of their program, in a namespace that has the given names."""
    tree = ast.parse((CLONE / "main_FedMuon.py").read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in WANTED]
    exec(compile(ast.Module(found, []), "main_FedMuon.py", "exec"), names)
    return names


class Count:
    """Their global number of steps. On a CPU their `.to` would give all parameters the same counter."""

    def __init__(self, value: int) -> None:
        self.value = value

    def to(self, _: torch.device) -> Tensor:
        return torch.tensor([float(self.value)])


class Worker:
    """One of their Ray workers. They have as many as clients take part in a round."""

    def __init__(self, p: Problem, code: dict[str, Any]) -> None:
        self.p, self.model, self.criterion, self.t = p, torch_side.Net(p.x0), nn.CrossEntropyLoss(), 0
        for name in WANTED - {"apply_weights_FedLADA"}:
            setattr(self, name, types.MethodType(code[name], self))

    def data_id_loader(self, i: int) -> None:
        self.data_iterator = [torch_side.tensors(batch) for batch in self.p.batches(self.t, i)]


def run(p: Problem, name: str, lr: float, gamma: float, alpha: float) -> list[np.ndarray]:
    args = types.SimpleNamespace(K=EQUAL_STEPS, gamma=gamma, alpha=alpha, lora=0)
    slots = len(PARTIAL[0])
    code = functions(torch=torch, args=args, device=torch.device("cpu"), lr=lr, selection=1.0)
    workers = [Worker(p, code) for _ in range(slots)]
    model, D, kept, seen = torch_side.Net(p.x0), {}, {}, []
    for t, ids in enumerate(PARTIAL):
        x = {key: z.clone() for key, z in model.state_dict().items()}
        results = []
        for worker, i in zip(workers, ids, strict=True):
            worker.t = t
            results.append(getattr(worker, name)(x, 1, i, dict(D), dict(kept), lr, Count(t * EQUAL_STEPS)))
        weights, D, kept = code["apply_weights_FedLADA"](slots, results, model, D)
        model.load_state_dict(weights)
        seen.append(torch_side.read(model))
    return seen


serve(
    {
        "equal fedmuon": lambda p: run(p, "update_FedMuon", lr=0.02, gamma=0.3, alpha=3.0),
        "equal fedadamw": lambda p: run(p, "update_FedAdamW", lr=0.02, gamma=0.5, alpha=0.1),
    }
)
