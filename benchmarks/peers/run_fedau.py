"""IBM/fedau: the main program of the authors of FedAU, which also has FedVARP and MIFA, with given cohorts and batches.

Its program reads a configuration, downloads images and draws who takes part. Small modules stand for these here.
"""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch_side
from problem import EQUAL_STEPS, PARTIAL, SIZES, Problem, serve
from torch import Tensor, nn

CLONE = sys.argv[3]
sys.path.insert(0, CLONE)
torch.set_default_dtype(torch.float64)


def module(name: str, **content: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


class Model:
    """What the program asks of its model: flat weights, an optimizer and a loss."""

    def __init__(self, p: Problem) -> None:
        self.model = torch_side.Net(p.x0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss_fn = nn.CrossEntropyLoss()

    def get_weight(self) -> Tensor:
        return torch.tensor(torch_side.read(self.model))

    def assign_weight(self, w: Tensor) -> None:
        torch_side.write(self.model, w.numpy())


class Member:
    """Whether a client takes part, round by round. The program makes one for each client, in order."""

    made = 0

    def __init__(self, *_: Any) -> None:
        self.present = iter([Member.made in ids for ids in PARTIAL])
        Member.made += 1

    def sample(self) -> bool:
        return next(self.present)


def run(p: Problem, weighting: str, cutoff: int = 100_000) -> list[np.ndarray]:
    seen: list[np.ndarray] = []

    class Watch:
        def __init__(self, **_: Any) -> None:
            pass

        def collect_stat_eval(self, *args: Any) -> None:
            seen.append(args[-1].numpy().copy())

    def batches(i: int, **_: Any) -> Iterator[torch_side.Pair]:
        """All batches of client i in the rounds in which it takes part."""
        return (torch_side.tensors(b) for t, ids in enumerate(PARTIAL) if i in ids for b in p.batches(t, i))

    Member.made = 0
    module(
        "config", device=torch.device("cpu"), results_file_prefix="", save_agg_weight=False, simulations=[0], dataset="",
        dataset_file_path="", batch_size_eval=1, n_nodes=len(SIZES), step_size_local_config=0.1, model_name="",
        load_model_file=None, batch_size_train=1, weighting_method=weighting, participation_method="", k_value=cutoff,
        lr_decay_start_iter=10**9, lr_decay_interval=1, iters_per_round=EQUAL_STEPS, transform_train=None,
        step_size_global=0.8, save_checkpoint=False, iters_checkpoint=0, min_iters_per_eval=1,
        max_iter=EQUAL_STEPS * len(PARTIAL), save_final_model=False, save_model_file="",
    )  # fmt: skip
    module("dataset")
    module("dataset.dataset", load_data=lambda *_: (0, 0))
    module("statistic")
    module("statistic.collect_stat", CollectStatistics=Watch)
    module("model")
    module("model.model", Model=lambda *_, **__: Model(p))
    module("util")
    module(
        "util.util", DatasetSplit=lambda _, i: i, WorkerSampler=Member,
        data_participation_each_node=lambda _, n: (list(range(n)), [0.5] * n),
    )  # fmt: skip
    torch.utils.data.DataLoader = batches  # type: ignore[assignment, misc]
    runpy.run_path(f"{CLONE}/main.py", run_name="__main__")
    return seen


serve(
    {
        "equal fedau": lambda p: run(p, "adaptive"),
        "equal fedau cutoff": lambda p: run(p, "adaptive", cutoff=2),
        "equal fedvarp": lambda p: run(p, "fedvarp"),
        "equal mifa": lambda p: run(p, "mifa"),
    }
)
