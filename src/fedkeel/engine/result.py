"""The result of a run in memory: the model, the records of server and clients, and the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.records import OrdinaryOrder
from fedkeel.engine.attendance import Attendance
from fedkeel.engine.machine import peak_memory
from fedkeel.engine.state.store import Store

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Clients(Mapping[int, Any]):
    """client -> its record, on the device of the run. None for a client that never took part, or if clients of this method
    keep nothing."""

    def __init__(self, store: Store, N: int, device: torch.device, ordinary: OrdinaryOrder) -> None:
        self.store, self.N, self.device, self.ordinary = store, N, device, ordinary

    def __getitem__(self, client: int) -> Any:
        if not 0 <= client < self.N:
            raise KeyError(client)
        if client not in self.store:
            return None
        record = self.store.read(client)
        # A copy: you may change it without harm to the file from which the run can be resumed.
        return self.ordinary(type(record)(*(z.to(self.device, copy=True) for z in record)))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.N))

    def __len__(self) -> int:
        return self.N


@dataclass
class Run:
    """What `train` returns."""

    params: Tensor  # [d] final global model, in the order of model.parameters()
    model: nn.Module  # the module with these weights
    server: Any  # the server record
    clients: Clients
    history: list[dict[str, Any]]  # one row per round
    algorithm: Algorithm  # with all hyper-parameters filled in, also those that follow from N, S, K and T
    engine: str  # which engine ran the clients
    why: str  # the reason, if the engine was chosen automatically
    out: Path | None  # the directory of the run

    @property
    def attendance(self) -> pd.DataFrame:
        """One line per client: in how many rounds it came, their share, its last round and the age of its record.

        Only runs with `participation` write down who came (participation="uniform" changes nothing else).
        """
        if not self.history or "came" not in self.history[0]:
            raise ValueError(
                "attendance: this run did not write down who came; train with participation='uniform' or another"
            )
        found = Attendance(len(self.clients))
        found.replay(self.history)
        return found.frame(len(self.history))

    def timeline(self) -> Figure:
        """A matplotlib figure of who worked when, in virtual time. Only runs with a clock have it."""
        from fedkeel.engine.timeline import draw_timeline

        return draw_timeline(self.history)

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run, as in summary.json."""
        scores = [row["test_accuracy"] for row in self.history if row.get("test_accuracy") is not None]
        return {
            "algorithm": self.algorithm.name,
            "rounds": len(self.history),
            "final_accuracy": scores[-1] if scores else None,
            "best_accuracy": max(scores, default=None),
            # Losses are not protected, so they are no part of what a private run tells.
            "final_train_loss": None if "epsilon" in self.history[-1] else self.history[-1]["train_loss"],
            "up": sum(row["up"] + row.get("warmup_up", 0) for row in self.history),
            "down": sum(row["down"] + row.get("warmup_down", 0) for row in self.history),
            "seconds": sum(row["seconds"] for row in self.history),
            "dropped": sum(row["dropped"] + len(row.get("warmup_faults", ())) for row in self.history),
            "engine": self.engine,
            "engine_reason": self.why,
            "memory_mb": peak_memory(),
        }
