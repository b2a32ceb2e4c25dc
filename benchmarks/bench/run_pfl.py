"""pfl-research: its FederatedAveraging on its SimulatedBackend, with a callback as the clock.  run_pfl.py WORKLOAD"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from clock import WARM_UP, Clock
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from workloads import LR, WORKLOADS, arrays

NEVER = 10**9

name = sys.argv[1]
w, (x, y) = WORKLOADS[name], map(torch.from_numpy, arrays(name))
clock = Clock(1 if w.rounds == 1 else WARM_UP)


class Model(nn.Module):
    """pfl needs the loss inside the module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = w.module()

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


class Tick(TrainingProcessCallback):
    """The first rounds test whether one thread or all threads are faster. Then the clock starts."""

    def __init__(self) -> None:
        self.spent: dict[int, float] = {}
        self.trials = [1, 1, len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0))]
        if w.rounds == 1:  # rounds are long, so each way is timed once
            self.trials = self.trials[1:3]
        torch.set_num_threads(self.trials[0])
        self.since = time.perf_counter()

    def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        if central_iteration < len(self.trials):
            self._try(central_iteration)
        else:
            clock.tick()
        return False, Metrics()

    def _try(self, number: int) -> None:
        now = time.perf_counter()
        self.spent[self.trials[number]] = now - self.since  # of two, the later one counts
        self.since = now
        if number + 1 < len(self.trials):
            torch.set_num_threads(self.trials[number + 1])
        else:
            threads = min(self.spent, key=lambda n: self.spent[n])
            torch.set_num_threads(threads)
            clock.tell(threads=threads)
            clock.start = time.perf_counter()


def user(i: int) -> Dataset:
    """pfl reads a user's data in order, so they are shuffled here. Samples that no step reaches are left out."""
    rows = torch.randperm(w.samples)[: w.steps * w.batch] + i * w.samples
    return Dataset((x[rows], y[rows]), user_id=str(i))


model = Model()
data = FederatedDataset(user, get_user_sampler("random", list(range(w.clients))))
once = w.steps * w.batch <= w.samples  # pfl's number of steps ends with the data
local = NNTrainHyperParams(
    local_num_epochs=None if once else w.steps * w.batch // w.samples,
    local_num_steps=w.steps if once else None,
    local_learning_rate=LR,
    local_batch_size=w.batch,
)
plan = NNAlgorithmParams(
    central_num_iterations=NEVER, evaluation_frequency=NEVER, train_cohort_size=w.cohort, val_cohort_size=0
)
pytorch = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0))
FederatedAveraging().run(plan, SimulatedBackend(data, data), pytorch, local, callbacks=[Tick()])
