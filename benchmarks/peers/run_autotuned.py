"""jlylekim/auto-tuned-FL: the local update and the optimizer of the authors of Delta-SGD. The mean of models is ours."""

from __future__ import annotations

import sys
import types

import numpy as np
import torch
import torch_side
from problem import PARTIAL, Problem, serve
from torch import nn

sys.path.insert(0, f"{sys.argv[3]}/src")

from update import LocalUpdate


def run(p: Problem, amplifier: float) -> list[np.ndarray]:
    x, seen = p.x0, []
    for t, ids in enumerate(PARTIAL):
        models = []
        for i in ids:
            local = LocalUpdate.__new__(LocalUpdate)  # its constructor splits a data set
            local.device, local.criterion = torch.device("cpu"), nn.CrossEntropyLoss()
            local.trainloader = [torch_side.tensors(batch) for batch in p.batches(t, i)]
            local.args = types.SimpleNamespace(
                optimizer="adsgd", lr_amplifier=amplifier, lr_damping=1.0, lr_eps=0.0, local_ep=1, is_text="false",
                verbose=0,
            )  # fmt: skip
            model = torch_side.Net(x)
            local.update_weights(model, t)
            models.append(torch_side.read(model))
        x = np.mean(models, axis=0)
        seen.append(x)
    return seen


serve({"delta-sgd": lambda p: run(p, 0.0), "delta-sgd grows": lambda p: run(p, 0.5)})
