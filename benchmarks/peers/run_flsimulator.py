"""FL-Simulator: its servers, clients and optimizers, in its own training loop, with given cohorts and batches.

Its number of local steps, which it takes from the size of client 0, is replaced by the true number.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import torch
import torch_side
from problem import BATCH, EQUAL_STEPS, PARTIAL, SIZES, Problem, serve

sys.path.insert(0, sys.argv[3])
torch.set_default_dtype(torch.float64)

# Its file of this name downloads image data. The pair (data, number of the client) is all that the loader below needs.
sys.modules["dataset"] = types.ModuleType("dataset")
sys.modules["dataset"].Dataset = lambda x, y, **_: y  # type: ignore[attr-defined]

import server  # noqa: E402


class Data:
    """What its servers ask of a federation."""

    def __init__(self, p: Problem) -> None:
        self.client_x = [x for x, _ in p.data]
        self.client_y = list(range(len(SIZES)))  # the number of the client, see Dataset above


def run(p: Problem, name: str, clip: float = 10.0, **options: float) -> list[np.ndarray]:
    """clip: its largest norm of a direction. Ten, which it has, is never reached here."""
    seen: list[np.ndarray] = []

    class Watched(getattr(server, name)):  # type: ignore[misc]
        def _activate_clients_(self, t: int) -> list[int]:
            self.t = t
            return PARTIAL[t]

        def _test_(self, t: int, selected_clients: list[int]) -> None:
            seen.append(torch_side.read(self.server_model))

        def _save_results_(self) -> None:
            pass

        _summary_ = _save_results_

    settings: dict[str, Any] = {
        "method": name, "total_client": len(SIZES), "comm_rounds": len(PARTIAL), "local_epochs": 1, "batchsize": BATCH,
        "weight_decay": 0.0, "local_learning_rate": 0.1, "global_learning_rate": 0.8, "lr_decay": 0.9, "use_RI": False,
        "dataset": "none",
    }  # fmt: skip
    start = torch_side.Net(p.x0)
    boss = Watched(
        device=torch.device("cpu"), model_func=lambda: torch_side.Net(p.x0), init_model=start,
        init_par_list=torch.tensor(p.x0), datasets=Data(p), method=name, args=types.SimpleNamespace(**settings | options),
    )  # fmt: skip
    boss.local_iteration = EQUAL_STEPS

    class Clipped(boss.Client):  # type: ignore[misc, name-defined]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.max_norm = clip

    boss.Client = Clipped
    torch.utils.data.DataLoader = lambda i, **_: [torch_side.tensors(b) for b in p.batches(boss.t, i)]  # type: ignore
    boss.train()
    return seen


serve(
    {
        "equal scaffold clipped": lambda p: run(p, "SCAFFOLD", clip=0.5),
        "equal fedgamma clipped": lambda p: run(p, "FedGamma", clip=0.5, rho=0.2),
        "equal fedsam": lambda p: run(p, "FedSAM", rho=0.2),
        "equal mofedsam": lambda p: run(p, "MoFedSAM", rho=0.2, alpha=0.3),
        "equal fedgamma": lambda p: run(p, "FedGamma", rho=0.2),
        "equal fedspeed": lambda p: run(p, "FedSpeed", rho=0.2, lamb=0.3),
        "equal fedsmoo": lambda p: run(p, "FedSMOO", rho=0.2, lamb=0.3),
    }
)
