"""FLGo: the `iterate` of its servers and the `train` of its clients, without its task files and its simulated clock."""

from __future__ import annotations

import copy
import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from torch_side import Net, read, tensors, write  # isort: skip  # before flgo: see VISION there
from flgo.algorithm import fedavgm, feddyn, fednova, fedprox, mifa, moon, scaffold
from flgo.benchmark.base import BasicTaskCalculator
from flgo.utils.fmodule import FModule
from problem import FULL, PARTIAL, SIZES, Problem, serve
from torch import nn

LR = 0.1
EVERYBODY_FIRST = [FULL[0], *PARTIAL[1:]]


class Model(FModule):
    """FLGo computes with models, which it makes without arguments."""

    def __init__(self) -> None:
        super().__init__()
        net = Net(np.zeros(39))
        self.encoder, self.head = net.encoder, net.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


class Calculator(BasicTaskCalculator):
    """The task: cross-entropy."""

    def to_device(self, data: Any, *args: Any) -> Any:
        return data

    def compute_loss(self, model: nn.Module, data: Any, *args: Any) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(model(data[0]), data[1])}


def make_client(kind: type, p: Problem, i: int) -> Any:
    """A client with what `train` looks at."""
    client = kind.__new__(kind)
    client.__dict__.update(
        id=i, _cache_vars=[], learning_rate=LR, weight_decay=0.0, momentum=0.0, clip_grad=0.0, device=torch.device("cpu"),
        calculator=Calculator(torch.device("cpu"), "SGD"), datavol=p.size(i), num_steps=len(p.batches(0, i)),
    )  # fmt: skip
    return client


def make_server(module: ModuleType, p: Problem, options: dict[str, Any], aggregate: str) -> Any:
    """A server whose `communicate` calls the clients directly, one after the other."""

    class Server(module.Server):  # type: ignore[name-defined]
        def sample(self) -> list[int]:
            return self.ids

        def communicate(self, ids: list[int]) -> dict[str, list[Any]]:
            self.received_clients, replies = ids, []
            for i in ids:
                batches = iter([tensors(batch) for batch in p.batches(self.t, i)])
                self.clients[i].get_batch_data = lambda batches=batches: next(batches)
                replies.append(self.clients[i].reply(self.pack(i)))
            return {key: [reply[key] for reply in replies] for key in replies[0]}

        def pack(self, i: int, *args: Any) -> dict[str, Any]:
            return super().pack(i) if module is scaffold else {"model": copy.deepcopy(self.model)}

        def init_algo_para(self, known: dict[str, Any]) -> None:
            for party in (self, *self.clients):
                party.__dict__.update(known | options)

    server = Server.__new__(Server)
    server.__dict__.update(
        clients=[make_client(module.Client, p, i) for i in range(len(SIZES))], model=Model(), num_clients=len(SIZES),
        learning_rate=LR, device=torch.device("cpu"), aggregation_option=aggregate, proportion=0.5, _cache_vars=[],
        gv=SimpleNamespace(logger=logging.getLogger("flgo")),
    )  # fmt: skip
    write(server.model, p.x0)
    server.initialize()
    server.aggregation_option = aggregate  # some set their own
    for client in server.clients:
        client.server = server
        client.initialize()
    return server


def run(
    p: Problem, module: ModuleType, cohorts: list[list[int]] = PARTIAL, aggregate: str = "uniform", **options: Any
) -> list[np.ndarray]:
    server, seen = make_server(module, p, options, aggregate), []
    for server.t, server.ids in enumerate(cohorts):
        server.iterate()
        seen.append(read(server.model))
    return seen


serve(
    {
        "fedprox": lambda p: run(p, fedprox, mu=0.5, aggregate="normalised"),
        "fedavgm": lambda p: run(p, fedavgm, beta=0.6, aggregate="normalised"),
        "scaffold": lambda p: run(p, scaffold, eta=0.7),
        "fednova": lambda p: run(p, fednova, aggregate="normalised"),
        "feddyn": lambda p: run(p, feddyn, alpha=0.3),
        "feddyn full": lambda p: run(p, feddyn, alpha=0.3, cohorts=FULL),
        "moon": lambda p: run(p, moon, mu=2.0, tau=0.5),
        "mifa": lambda p: run(p, mifa, cohorts=EVERYBODY_FIRST, c=1.0),
        "mifa waits": lambda p: run(p, mifa, c=1.0),
        "mifa at once": lambda p: run(p, mifa, c=0.0),
    }
)
