"""geehokim/FedACG: the authors' client and server, in the order of their trainer, with given cohorts and batches.

Mixed precision is off. The helpers that their files import, and that this method does not use, are left out.
"""

from __future__ import annotations

import collections
import copy
import sys
import types
from typing import Any

import numpy as np
import torch
import torch_side
from problem import PARTIAL, SIZES, Problem, serve
from torch import Tensor, nn

CLONE = sys.argv[3]
sys.path.insert(0, CLONE)


class Registry:
    """Their own one needs a package that prints tables."""

    def __init__(self, name: str) -> None:
        self.name = name

    def register(self) -> Any:
        return lambda kind: kind


class Meter:
    """Notes the losses of a client."""

    avg = 0.0

    def __init__(self, *_: Any) -> None:
        pass

    def update(self, *_: Any) -> None:
        pass


def module(name: str, **content: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


module(
    "utils", torch=torch, nn=nn, np=np, defaultdict=collections.defaultdict, FedDecorrLoss=lambda: None, get_numclasses=None
)
module("utils.metrics", evaluate=None)
module("utils.registry", Registry=Registry)
module("utils.logging_utils", AverageMeter=Meter)
module("models", build_encoder=None)
for package in ("clients", "servers"):  # their package files import all that the package has
    module(package, __path__=[f"{CLONE}/{package}"])

from clients.base_client import Client  # noqa: E402
from servers.base import ServerM  # noqa: E402


class Model(torch_side.Net):
    num_layers = 2

    def forward(self, x: Tensor) -> Any:
        return {"logit": super().forward(x)}


class Options(types.SimpleNamespace):
    def get(self, name: str) -> Any:
        return getattr(self, name, None)


def run(p: Problem, lam: float, weight: float) -> list[np.ndarray]:
    args = Options(
        server=Options(momentum=lam, FedACG=True), optimizer=Options(momentum=0.0, wd=0.0), use_amp=False, batch_size=1,
        client=Options(ce_loss=Options(weight=1.0), prox_loss=Options(weight=weight)), num_workers=0, pin_memory=False,
        trainer=Options(local_epochs=1, local_lr_decay=1.0), dataset=Options(num_instances=0, name="none"),
    )  # fmt: skip
    model = Model(p.x0)
    clients = [Client(args, i, model=copy.deepcopy(model)) for i in range(len(SIZES))]
    server = ServerM(args)
    server.set_momentum(model)
    seen = []
    for t, ids in enumerate(PARTIAL):
        model = server.FedACG_lookahead(copy.deepcopy(model))
        sent = copy.deepcopy(model.state_dict())
        weights, deltas = collections.defaultdict(list), collections.defaultdict(list)
        for i in ids:
            given = [torch_side.tensors(batch) for batch in p.batches(t, i)]
            sys.modules[Client.__module__].DataLoader = lambda *_, given=given, **__: given  # type: ignore[attr-defined]
            data = types.SimpleNamespace(class_dict={0: 1})
            clients[i].setup(sent, torch.device("cpu"), data, 0.1, t, None)
            for name, z in clients[i].local_train(global_epoch=t)[0].items():
                weights[name].append(z.clone())
                deltas[name].append(z - sent[name])
        model.load_state_dict(server.aggregate(weights, deltas, ids, copy.deepcopy(sent), 0.1))
        seen.append(torch_side.read(model))
    return seen


serve({"fedacg": lambda p: run(p, lam=0.7, weight=0.15)})
