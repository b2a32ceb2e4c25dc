"""fluke: its clients and servers, in the loop of its CentralizedFL.run, with given cohorts and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from torch_side import Epochs, Net, Pair, read, tensors  # isort: skip  # before fluke: see VISION there
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedavgm import FedAVGM
from fluke.algorithms.fedexp import FedExP
from fluke.algorithms.fednova import FedNova
from fluke.algorithms.fedopt import FedOpt
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.fedsam import FedSAM, SAMOptimizer
from fluke.algorithms.fedsgd import FedSGD
from fluke.algorithms.moon import MOON
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from problem import BATCH, CLASSES, EPOCHS, FULL, PARTIAL, SIZES, Problem, serve
from torch import nn


class Given(FastDataLoader):
    """fluke's loader, but with the given batches; `single_batch` is what its FedSGD sets."""

    def __init__(self, p: Problem, i: int, epochs: int) -> None:
        super().__init__(*tensors(p.data[i]), num_labels=CLASSES, batch_size=BATCH)
        self.p, self.i, self.one = p, i, epochs == 1
        self.given = Epochs(p, i)

    def __iter__(self) -> Iterator[Pair]:
        if self.one:  # all steps of the round count as one epoch
            batches: Any = (tensors(batch) for batch in self.p.batches(self.t, self.i))
        else:
            batches = iter(self.given)
        return iter([next(batches)]) if self.single_batch else batches

    def begin(self, t: int) -> None:
        self.t = t
        self.given.begin(t)

    def __len__(self) -> int:
        return len(self.p.batches(0, self.i)) if self.one else len(self.given)


def run(
    p: Problem,
    kind: type[CentralizedFL],
    cohorts: list[list[int]] = PARTIAL,
    epochs: int = EPOCHS,
    momentum: float = 0.0,
    client: dict[str, Any] | None = None,
    optimizer: Any = "SGD",
    **server: Any,
) -> list[np.ndarray]:
    """The steps of fluke's own loop, round by round."""
    FlukeENV().set_inmemory(True)
    fl = kind.__new__(kind)
    make = OptimizerConfigurator(DDict(name=optimizer, lr=LR, momentum=momentum))
    clients = [
        fl.get_client_class()(
            index=i, train_set=Given(p, i, epochs), test_set=None, optimizer_cfg=make, loss_fn=nn.CrossEntropyLoss(),
            local_epochs=epochs, **(client or {}),
        )
        for i in range(len(SIZES))
    ]  # fmt: skip
    boss = fl.get_server_class()(model=Net(p.x0), test_set=None, clients=clients, **{"weighted": False} | server)
    for one in clients:
        one.set_channel(boss.channel)
    seen = []
    for t, ids in enumerate(cohorts):
        eligible = [clients[i] for i in ids]
        boss.broadcast_model(eligible)
        for one in eligible:
            one.train_set.begin(t)
            if momentum:
                one.optimizer = None  # fluke keeps the momentum buffer; a fresh optimizer begins at 0, as fedkeel does
            one.local_update(t + 1)
        boss.aggregate(eligible, boss.receive_client_models(eligible, state_dict=False))
        seen.append(read(boss.model))
    return seen


def fedexp(p: Problem) -> list[np.ndarray]:
    """Its server copies the weights into a tensor of torch's default type."""
    torch.set_default_dtype(torch.float64)
    try:
        return run(p, FedExP)
    finally:
        torch.set_default_dtype(torch.float32)


LR = 0.1
OPT = {"lr": 1.0, "beta1": 0.8, "beta2": 0.9, "tau": 0.5}
torch.set_num_threads(1)

serve(
    {
        "fedavg": lambda p: run(p, FedAVG, weighted=True),
        "fedexp": fedexp,
        "fedsam": lambda p: run(p, FedSAM, client={"rho": 0.2}, optimizer=SAMOptimizer),
        "fedsgd": lambda p: run(p, FedSGD, epochs=1),
        "fedprox": lambda p: run(p, FedProx, client={"mu": 0.5}),
        "fedavgm": lambda p: run(p, FedAVGM),
        "fedadam": lambda p: run(p, FedOpt, mode="adam", **OPT),
        "fedadam lr": lambda p: run(p, FedOpt, mode="adam", **OPT | {"lr": 0.1, "tau": 0.01}),
        "fedyogi": lambda p: run(p, FedOpt, mode="yogi", **OPT),
        "fedadagrad": lambda p: run(p, FedOpt, mode="adagrad", **OPT),
        "scaffold": lambda p: run(p, SCAFFOLD),
        "equal scaffold": lambda p: run(p, SCAFFOLD, cohorts=FULL, epochs=1),
        "fednova": lambda p: run(p, FedNova, weighted=True),
        "fednova momentum": lambda p: run(p, FedNova, momentum=0.7),
        "moon": lambda p: run(p, MOON, client={"mu": 2.0, "tau": 0.5}),
    }
)
