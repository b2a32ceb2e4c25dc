"""The result of a run in memory: the model, the records of server and clients, and the history."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import FlatModel, set_memory_format
from fedkeel.core.records import OrdinaryOrder
from fedkeel.engine.attendance import Attendance
from fedkeel.engine.best_round import BestRound
from fedkeel.engine.machine import peak_memory
from fedkeel.engine.state.store import Store
from fedkeel.errors import refuse

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fedkeel.engine.runners.runner import EngineChoice
    from fedkeel.engine.state.checkpoint import RunState


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


class KeptClients(Mapping[int, Any]):
    """The clients' records in memory: those of a run that was pickled or opened."""

    def __init__(self, records: dict[int, Any], N: int) -> None:
        self.records, self.N = records, N

    def __getitem__(self, client: int) -> Any:
        if not 0 <= client < self.N:
            raise KeyError(client)
        return self.records.get(client)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.N))

    def __len__(self) -> int:
        return self.N


def model_at(module: nn.Module, private: bool, x: Tensor, buffers: Tensor) -> nn.Module:
    """The module with these weights, which are in the order of model.parameters(), in evaluation mode."""
    flat = FlatModel(module, private)
    flat.bind(x.clone())
    if flat.has_buffers:
        flat.write_buffers(buffers)
    return module.eval()


def run_of(
    state: RunState,
    model: FlatModel,
    algo: Algorithm,
    store: Store,
    N: int,
    engine: EngineChoice,
    out: Path | None,
    config: dict[str, Any],
) -> Run:
    """The run in this state. N: its clients."""
    ordinary = OrdinaryOrder(algo, model.layers)
    server = ordinary(state.server)
    module = model.copy()
    set_memory_format(module, "contiguous")
    for p, original in zip(module.parameters(), model.module.parameters(), strict=True):
        p.requires_grad_(original.requires_grad)
    return Run(
        params=server.x.clone(),
        model=model_at(module, algo.facts.private, server.x, state.buffers),
        server=server,
        clients=Clients(store, N, model.device, ordinary),
        history=state.history,
        algorithm=algo,
        engine=engine.name,
        why=engine.why,
        out=out,
        stopped=state.stopped,
        config=config,
        best_at=state.best and state.best.in_order(model.layers),
    )


@dataclass(repr=False)
class Run:
    """What `train` returns."""

    params: Tensor  # [d] final global model, in the order of model.parameters()
    model: nn.Module  # the module with these weights, in evaluation mode
    server: Any  # the server record
    clients: Mapping[int, Any]
    history: list[dict[str, Any]]  # one row per round
    algorithm: Algorithm  # with all hyper-parameters filled in, also those that follow from N, S, K and T
    engine: str  # which engine ran the clients
    why: str  # the reason, if the engine was chosen automatically
    out: Path | None  # the directory of the run
    stopped: str = ""  # why the run ended before its last round: a callback's reason, or "interrupted"
    config: dict[str, Any] = field(default_factory=dict)  # the settings, as config.toml holds them
    best_at: BestRound | None = None  # the best round on the validation data

    @property
    def best_round(self) -> int:
        """The round with the best score on the validation data. Without validation data, the last round."""
        return self.history[-1]["round"] if self.best_at is None else self.best_at.round

    @functools.cached_property
    def best(self) -> nn.Module:
        """The model of the best round on the validation data, in evaluation mode. Without validation data, the last model:
        choosing by test data would make the test score too good."""
        if self.best_at is None:
            return self.model
        return model_at(copy.deepcopy(self.model), self.algorithm.facts.private, self.best_at.x, self.best_at.buffers)

    @property
    def frame(self) -> DataFrame:
        """The history as a pandas frame, one row per round."""
        import pandas

        return pandas.DataFrame(self.history).set_index("round", drop=False).rename_axis(None)

    def plot(self) -> Figure:
        """A matplotlib figure of the losses and scores over the rounds."""
        from fedkeel.engine.run_figure import figure_of

        return figure_of(self)

    def save(self, path: str | Path) -> Path:
        """Writes the run into a directory, from which `fk.open` reads it."""
        from fedkeel.engine.run_files import save_run

        return save_run(self, Path(path))

    def export(self, path: str | Path, which: str = "final", example: Any = None) -> Path:
        """Writes the model for other programs. The end of the path says how: .safetensors, .onnx, or a folder for models of
        Hugging Face.  which: "final" or "best".  example: a batch of inputs, which ONNX needs."""
        from fedkeel.engine.export import export_model

        if which not in ("final", "best"):
            raise refuse("which", which, "'final' or 'best'")
        return export_model(self.model if which == "final" else self.best, Path(path), example)

    def __repr__(self) -> str:
        from fedkeel.engine.run_text import run_line

        return run_line(self)

    def _repr_html_(self) -> str:
        from fedkeel.engine.run_text import run_html

        return run_html(self)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle. The clients' records may lie in a file of this process, so they are copied."""
        clients = {client: z for client in self.clients if (z := self.clients[client]) is not None}
        state = {name: value for name, value in vars(self).items() if name != "best"}
        return state | {"clients": KeptClients(clients, len(self.clients))}

    @property
    def attendance(self) -> DataFrame:
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
        found = {
            "algorithm": self.algorithm.name,
            "rounds": len(self.history),
            "final_accuracy": scores[-1] if scores else None,
            "best_accuracy": max(scores, default=None),
            # The noise of privacy does not protect losses, so a private run does not report them.
            "final_train_loss": None if "epsilon" in self.history[-1] else self.history[-1]["train_loss"],
            "up": sum(row["up"] + row.get("warmup_up", 0) for row in self.history),
            "down": sum(row["down"] + row.get("warmup_down", 0) for row in self.history),
            "seconds": sum(row["seconds"] for row in self.history),
            "dropped": sum(row["dropped"] + len(row.get("warmup_faults", ())) for row in self.history),
            "engine": self.engine,
            "engine_reason": self.why,
            "memory_mb": peak_memory(),
        }
        for name in ("val_accuracy", "val_loss", "test_loss"):
            values = [row[name] for row in self.history if row.get(name) is not None]
            found |= {f"final_{name}": values[-1]} if values else {}
        found |= {"best_round": self.best_round} if self.best_at else {}
        return found | ({"stopped": self.stopped} if self.stopped else {})
