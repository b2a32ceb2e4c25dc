"""mingxiang12/FedAWE: the loop of FedAWE's authors with given cohorts and batches.

Its program reads a configuration, loads images, draws who takes part and needs a GPU. Small modules stand for these here.
`accumulation`, which makes the new model, is the authors'.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_side
from problem import EQUAL_STEPS, PARTIAL, SIZES, Problem, serve
from torch import Tensor, nn

CLONE = sys.argv[3]
torch.set_default_dtype(torch.float64)
to = Tensor.to
Tensor.to = lambda z, *args, **kw: z if args == ("cuda",) else to(z, *args, **kw)  # type: ignore[assignment, method-assign]


def module(name: str, **content: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


def function(file: str, name: str, **known: Any) -> Callable[..., Any]:
    """One function of the authors' code, whose file imports what is not here."""
    tree = ast.parse(Path(CLONE, file).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    space: dict[str, Any] = {"torch": torch, **known}
    exec(compile(ast.Module([found], []), file, "exec"), space)
    return space[name]  # type: ignore[no-any-return]


class Model:
    """What the loop asks of its model: flat weights, an optimizer and a loss."""

    def __init__(self, p: Problem) -> None:
        self.model = torch_side.Net(p.x0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss_fn = nn.CrossEntropyLoss()

    def get_weight(self) -> Tensor:
        return torch.tensor(torch_side.read(self.model))

    def assign_weight(self, w: Tensor) -> None:
        torch_side.write(self.model, w.numpy())

    def update_learning_rate(self, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr


def run(p: Problem, bound: bool) -> list[np.ndarray]:
    seen: list[np.ndarray] = []
    samplers = iter([i in ids for ids in PARTIAL for i in range(len(SIZES))])  # the loop makes them round by round

    class Member:
        def __init__(self, *_: Any) -> None:
            here = next(samplers)
            self.sample = lambda: here

    class Watch:
        def __init__(self, **_: Any) -> None:
            pass

        def collect_stat_eval(self, *args: Any) -> None:
            seen.append(args[-1].numpy().copy())

    def batches(i: Any, **_: Any) -> Iterator[torch_side.Pair]:
        """All batches of client i in the rounds in which it takes part."""
        return (torch_side.tensors(b) for t, ids in enumerate(PARTIAL) if i in ids for b in p.batches(t, i))

    clip = function("dataset/dataset.py", "clip") if bound else lambda z, _: z
    module(
        "config", prefix="", seeds=[0], dataset="", dataset_file_path="", num_clients=len(SIZES), lr_local_init=0.1,
        model_name="", device=torch.device("cpu"), batch_size_train=0, total_rounds=len(PARTIAL), transform_train=None,
        lr_global=0.8, eval_freq=1,
    )  # fmt: skip
    module("dataset")
    module("dataset.dataset", load_data=lambda *_: (-1, -1))
    module("statistic")
    module("statistic.collect_stat", stats_collector_bar=Watch)
    module("model")
    module("model.model", Model=lambda *_, **__: Model(p))
    module("util")
    module(
        "util.util", DatasetSplit=lambda _, i: i, ClientSampler=Member,
        data_participation_each_node=lambda _, n: (list(range(n)), [0.5] * n),
        data_participation_each_node_per_round=lambda init, _: init,
        accumulation=function("util/util.py", "accumulation", clip=clip),
    )  # fmt: skip
    torch.utils.data.DataLoader = batches  # type: ignore[assignment, misc]
    space: dict[str, Any] = {
        "__name__": "varying_awe",
        # Its ten local steps are those of the problem here.
        "range": lambda *a: builtins.range(EQUAL_STEPS) if a == (0, 10) else builtins.range(*a),
    }
    exec(compile(Path(CLONE, "varying_awe.py").read_text(), "varying_awe.py", "exec"), space)
    space["varying_dynamics_awe"]()
    return seen


serve({"equal fedawe": lambda p: run(p, bound=False), "equal fedawe bound": lambda p: run(p, bound=True)})
