"""yujiaw98/FADAS: the server step and the compressor of FADAS' authors, who also wrote FedAMS and FedCAMS.

Its main programs draw delays and clients, so the loop over clients is here, as are plain SGD and error feedback. The scaled
sign, the moments, their maximum and the step, with its factor for delays, are the authors'.
"""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from problem import PARTIAL, SHAPES, Problem, flat, serve, sgd, split

CLONE = sys.argv[3]
sys.path.insert(0, CLONE)
sys.modules["utils"] = types.ModuleType("utils")  # data sets and large models, which nothing here uses
for name in ("dequantize", "quantize", "norm_of_param"):
    setattr(sys.modules["utils"], name, None)

import compressors  # noqa: E402
import update  # noqa: E402


def tensors(w: np.ndarray) -> list[torch.Tensor]:
    return [torch.tensor(z) for z in split(w)]


def run(p: Problem, options: dict[str, float], sign: bool = False) -> list[np.ndarray]:
    args = SimpleNamespace(optimizer="fedams", beta1=0.8, beta2=0.9, **options)
    compressor = compressors.Compressor()
    compressor.makeSignCompressor()
    model = torch.nn.ParameterList([torch.nn.Parameter(z) for z in tensors(p.x0)])
    zeros = [[torch.zeros(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(3)]
    largest = [torch.zeros(shape, dtype=torch.float64) + options["max_init"] for shape in SHAPES]
    error: dict[int, Any] = {}
    weights = []
    for t, ids in enumerate(PARTIAL):
        x = flat(z.detach().numpy() for z in model)
        mean = torch.zeros(len(x), dtype=torch.float64)
        for i in ids:
            delta = torch.tensor(sgd(x, p.batches(t, i), lr=0.1) - x)
            if sign:
                wanted = delta + error.get(i, 0.0)
                delta = compressor.compressVector(wanted, t)
                error[i] = wanted - delta
            mean += delta / len(ids)
        update.update_model_inplace(model, tensors(x), tensors(mean.numpy()), args, t, *zeros, largest, 1)
        weights.append(flat(z.detach().numpy() for z in model))
    return weights


serve(
    {
        "fadas": lambda p: run(p, {"lr": 0.1, "eps": 0.01, "max_init": 0.001}),
        "fadas from zero": lambda p: run(p, {"lr": 0.1, "eps": 1e-8, "max_init": 0.0}),
        "fedcams": lambda p: run(p, {"lr": 0.1, "eps": 0.0, "max_init": 0.001}, sign=True),
    }
)
