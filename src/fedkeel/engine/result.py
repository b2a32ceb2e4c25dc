"""What a run leaves: its result in memory, and its directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm
from fedkeel.engine.machine import peak_memory
from fedkeel.engine.state.store import Store

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Clients(Mapping[int, Any]):
    """The records that clients keep; None for one that was never seen or keeps nothing."""

    def __init__(self, store: Store, N: int) -> None:
        self.store, self.N = store, N

    def __getitem__(self, client: int) -> Any:
        if not 0 <= client < self.N:
            raise KeyError(client)
        if client not in self.store:
            return None
        record = self.store.read(client)
        return type(record)(*(z.clone() for z in record))  # not the file itself, from which the run may be resumed

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.N))

    def __len__(self) -> int:
        return self.N


@dataclass
class Run:
    params: Tensor  # [d] final global model, in the order of model.parameters()
    model: nn.Module  # the module with these weights
    server: Any  # the server record
    clients: Clients
    history: list[dict[str, Any]]  # one row per round
    algorithm: Algorithm  # with the fields that depended on the run filled in
    engine: str  # who ran the clients
    why: str  # and why, if the engine was chosen automatically
    out: Path | None

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run."""
        scores = [row["test_accuracy"] for row in self.history if row.get("test_accuracy") is not None]
        return {
            "algorithm": self.algorithm.name,
            "rounds": len(self.history),
            "final_accuracy": scores[-1] if scores else None,
            "best_accuracy": max(scores, default=None),
            "final_train_loss": self.history[-1]["train_loss"],
            "up": sum(row["up"] + row.get("warmup_up", 0) for row in self.history),
            "down": sum(row["down"] + row.get("warmup_down", 0) for row in self.history),
            "seconds": sum(row["seconds"] for row in self.history),
            "dropped": sum(row["dropped"] + len(row.get("warmup_faults", ())) for row in self.history),
            "engine": self.engine,
            "engine_reason": self.why,
            "memory_mb": peak_memory(),
        }
