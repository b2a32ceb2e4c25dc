"""pfl-research: FedAvg, FedProx and SCAFFOLD through its own training loop and simulated backend.

pfl keeps model updates in float32 whatever the model is, so all of it runs in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from problem import BATCH, EPOCHS, PARTIAL, SIZES, Problem, serve
from torch import nn
from torch_side import Epochs, Net, read, tensors

F32 = torch.float32
LR = 0.1


class Model(Net):
    """pfl needs the loss inside the module."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self(x), torch.as_tensor(y, dtype=torch.long))

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


class Quiet(PyTorchModel):
    """Its evaluation would use up the given batches."""

    def evaluate(self, *_: Any, **__: Any) -> Metrics:
        return Metrics()


class Given(Dataset):
    """A user's data in the given batches; None for a batch size means all of it, as in pfl."""

    def __init__(self, p: Problem, t: int, i: int) -> None:
        super().__init__(tensors(p.data[i], F32), user_id=str(i))
        self.epochs = Epochs(p, i, F32)
        self.epochs.begin(t)

    def iter(self, batch_size: int | None) -> Iterator[Any]:
        return iter([self.raw_data]) if batch_size is None else iter(self.epochs)


class Cohorts:
    """A federated data set whose cohorts are given."""

    def __init__(self, p: Problem) -> None:
        self.p, self.t = p, -1

    def get_cohort(self, size: int) -> Iterator[tuple[Given, int]]:
        self.t += 1
        return ((Given(self.p, self.t, i), 0) for i in PARTIAL[self.t])


class Copies(InMemoryUserStateStorage):
    """pfl's option I hands over tensors that it overwrites for the next user; a storage has to copy them."""

    def save_state(self, state: Any, user_id: str, key: str | None = None) -> None:
        super().save_state(copy.deepcopy(state), user_id, key)


class Watch(TrainingProcessCallback):
    """Notes the global weights after each round."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def after_central_iteration(self, metrics: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.seen.append(read(model.pytorch_model))
        return False, Metrics()


def run(
    p: Problem, kind: type, params: type = NNAlgorithmParams, lr: float = 1.0, momentum: float = 0.0,
    samples: bool = False, **options: Any,
) -> list[np.ndarray]:  # fmt: skip
    net = Model(p.x0, F32)
    model = Quiet(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr, momentum=momentum))
    data, watch = Cohorts(p), Watch()
    backend = SimulatedBackend(data, data, [WeightByDatapoints()] if samples else [])
    plan = params(
        central_num_iterations=len(PARTIAL), evaluation_frequency=1, train_cohort_size=len(PARTIAL[0]),
        val_cohort_size=0, **options,
    )  # fmt: skip
    local = NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=LR, local_batch_size=BATCH)
    kind().run(plan, backend, model, local, callbacks=[watch])
    return watch.seen


def scaffold(p: Problem, first: bool) -> list[np.ndarray]:
    return run(
        p, SCAFFOLD, SCAFFOLDParams, population=len(SIZES), use_gradient_as_control_variate=first,
        user_state_storage=Copies(),
    )  # fmt: skip


serve(
    {
        "fedavg": lambda p: run(p, FederatedAveraging, lr=0.8, samples=True),
        "fedavgm": lambda p: run(p, FederatedAveraging, lr=0.7, momentum=0.6),
        "fedprox": lambda p: run(p, FedProx, FedProxParams, mu=0.5),
        "fedproxm": lambda p: run(p, FedProx, FedProxParams, mu=0.5, lr=0.7, momentum=0.6),
        "scaffold I": lambda p: scaffold(p, True),
        "scaffold II": lambda p: scaffold(p, False),
    }
)
