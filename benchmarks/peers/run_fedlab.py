"""FedLab: its server handlers and serial client trainers, on the given batches and cohorts."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_side import Epochs, Net, read  # isort: skip  # before fedlab: see VISION there
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaSerialClientTrainer, FedNovaServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from problem import BATCH, EPOCHS, PARTIAL, SIZES, Problem, serve

LR = 0.1


class Given:
    """A data set in FedLab's sense: hands out one loader per client and round."""

    def __init__(self, p: Problem) -> None:
        self.p, self.t = p, 0

    def get_dataloader(self, i: int, batch_size: int) -> Epochs:
        loader = Epochs(self.p, i)
        loader.begin(self.t)
        return loader


def run(p: Problem, server: type, trainer: type, client: dict[str, Any], options: dict[str, Any]) -> list[np.ndarray]:
    """FedLab's standalone pipeline, with given cohorts in the place of `sample_clients`."""
    handler = server(Net(p.x0), len(PARTIAL), len(PARTIAL[0]) / len(SIZES))
    handler.num_clients = len(SIZES)
    workers = trainer(Net(p.x0), len(SIZES))
    data = Given(p)
    workers.setup_dataset(data)
    workers.setup_optim(EPOCHS, BATCH, LR, **client)
    if options:
        handler.setup_optim(**options)
    seen = []
    for t, ids in enumerate(PARTIAL):
        data.t = t
        workers.local_process(handler.downlink_package, ids)
        for pack in workers.uplink_package:
            handler.load(pack)
        seen.append(read(handler._model))
    return seen


serve(
    {
        "fedavg": lambda p: run(p, FedAvgServerHandler, FedAvgSerialClientTrainer, {}, {}),
        "fedprox": lambda p: run(p, FedProxServerHandler, FedProxSerialClientTrainer, {"mu": 0.5}, {}),
        "scaffold": lambda p: run(p, ScaffoldServerHandler, ScaffoldSerialClientTrainer, {}, {"lr": 0.7}),
        "fednova": lambda p: run(p, FedNovaServerHandler, FedNovaSerialClientTrainer, {}, {"option": "weighted_com"}),
        "feddyn": lambda p: run(p, FedDynServerHandler, FedDynSerialClientTrainer, {"alpha": 0.3}, {"alpha": 0.3}),
    }
)
