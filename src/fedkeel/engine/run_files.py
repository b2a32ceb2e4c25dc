"""Runs in directories: `Run.save` writes one. `fk.open` reads it, and also that of a run with `out=`."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedkeel.core.algorithm import Algorithm, make
from fedkeel.core.flat import Layers
from fedkeel.core.records import OrdinaryOrder
from fedkeel.engine.best_round import BestRound
from fedkeel.engine.client_work import PrivateLayers
from fedkeel.engine.machine import made_with
from fedkeel.engine.result import Clients, KeptClients, Run
from fedkeel.engine.state import directory
from fedkeel.engine.state.checkpoint import load_checkpoint
from fedkeel.engine.state.history_file import HistoryFile
from fedkeel.engine.state.store import ALIGN, Layout
from fedkeel.errors import refuse
from fedkeel.files import as_toml, guarded, read_toml, sealed, write_atomically

STATE = "run.safetensors"  # what `save` keeps of a run beside its model: records, best round, method
FORMAT = "fedkeel-run-1"


def save_run(run: Run, path: Path) -> Path:
    """Writes the files of a run into a directory, which must not hold another run."""
    guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
    if directory.holds_run(path):
        raise ValueError(f"save: {path} already holds a run; choose another directory")
    tensors = {"params": run.params} | {f"server.{name}": z for name, z in run.server._asdict().items()}
    for client in run.clients:
        if (record := run.clients[client]) is not None:
            tensors |= {f"client.{client}.{name}": z for name, z in record._asdict().items()}
    facts: dict[str, Any] = {
        "algorithm": {"name": run.algorithm.name, **dataclasses.asdict(run.algorithm)},  # type: ignore[call-overload]
        "clients": len(run.clients),
        **{name: getattr(run, name) for name in ("engine", "why", "stopped")},
    }
    if run.best_at is not None:
        facts["best"], tensors = run.best_at.scores(), tensors | run.best_at.tensors()
    tensors = {name: z.detach().to("cpu", copy=True).contiguous() for name, z in tensors.items()}
    write_atomically(path / STATE, save(tensors, {"format": FORMAT, "facts": json.dumps(facts)}))
    write_atomically(path / directory.CONFIG, tomli_w.dumps(as_toml(run.config)).encode())
    HistoryFile(path).begin(run.history)
    directory.write_model(run.model, path)
    about = run.summary() | {"made_with": made_with()}
    write_atomically(path / directory.SUMMARY, sealed(about, indent=2).encode())
    return path


def open_run(path: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None) -> Run:
    """The run in a directory that `run.save` or `train(..., out=)` has written.

    model: the model of the run, or the function that makes it. You need it only if its layers are of your own classes.
    """
    folder = Path(path)
    if not (folder / directory.SUMMARY).exists():
        if (folder / "study.toml").exists():
            raise ValueError(f"open: {folder} holds a study; read it with fk.StudyResult.read({str(folder)!r})")
        unfinished = directory.next_round(folder) is not None
        more = (
            "it is not complete; go on with it by train(..., resume=True) or fk.resume" if unfinished else "it holds no run"
        )
        raise ValueError(f"open: {folder}: {more}")
    weights = _tensors(folder / directory.MODEL)
    made = _read_model(folder, model)
    made.load_state_dict(weights)
    history = directory.history(folder)
    config = read_toml(folder / directory.CONFIG)
    opened = _from_state if (folder / STATE).exists() else _from_checkpoint
    return opened(folder, {"model": made.eval(), "history": history, "config": config, "out": folder})


def _read_model(folder: Path, model: nn.Module | Callable[[], nn.Module] | None) -> nn.Module:
    """A module whose weights do not matter."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if model is not None:
        if not callable(model) or not isinstance(made := model(), nn.Module):
            raise refuse("model", model, "a torch.nn.Module or a function that makes one")
        return made
    content = (folder / directory.LAYERS).read_bytes() if (folder / directory.LAYERS).exists() else b""
    classes = directory.layer_classes(content) if content else None
    if classes is None:
        raise ValueError(
            f"open: {folder} does not hold the layers of the model; pass model=, the model or a function that makes it"
        )
    with torch.serialization.safe_globals(classes):
        found: nn.Module = torch.load(io.BytesIO(content), weights_only=True)
    return found.to_empty(device="cpu")


def _from_state(folder: Path, parts: dict[str, Any]) -> Run:
    """A run that `save_run` has written."""
    tensors, facts = _tensors(folder / STATE), json.loads(_metadata(folder / STATE)["facts"])
    algo = _method(facts["algorithm"])
    server, initial = algo.init(tensors["params"])
    records: dict[int, dict[str, Tensor]] = {}
    for name, z in tensors.items():
        if name.startswith("client."):
            _, client, field = name.split(".", 2)
            records.setdefault(int(client), {})[field] = z
    kind: Any = PrivateLayers if algo.facts.private else type(initial)
    return Run(
        params=tensors["params"],
        server=type(server)(**{name: tensors[f"server.{name}"] for name in server._fields}),
        clients=KeptClients({client: kind(**fields) for client, fields in records.items()}, facts["clients"]),
        algorithm=algo,
        best_at=BestRound.restored(facts["best"], tensors, torch.device("cpu")) if "best" in facts else None,
        **{name: facts[name] for name in ("engine", "why", "stopped")},
        **parts,
    )


def _from_checkpoint(folder: Path, parts: dict[str, Any]) -> Run:
    """A run that `train(..., out=)` has written."""
    saved = load_checkpoint(folder / directory.CHECKPOINT)
    tensors, facts = saved.tensors, saved.facts
    identity = facts["identity"]
    algo = _method(identity["algorithm"])
    names, shapes = zip(*((name, torch.Size(shape)) for name, shape in identity["model"]), strict=True)
    last = identity["settings"].get("memory_format") == "channels_last"
    layers = Layers([shape.numel() for shape in shapes], list(names), list(shapes), last)
    ordinary = OrdinaryOrder(algo, layers)
    template = algo.init(torch.zeros(sum(layers.sizes)))[0]
    server = ordinary(type(template)(**{name: tensors[f"server.{name}"] for name in template._fields}))
    best = BestRound.restored(facts["best"], tensors, torch.device("cpu")) if "best" in facts else None
    store: Any = StoredRecords(folder / directory.CLIENTS, algo, tensors)
    return Run(
        params=server.x.clone(),
        server=server,
        clients=Clients(store, int(facts.get("clients", len(store.live))), torch.device("cpu"), ordinary),
        algorithm=algo,
        engine=facts["engine"],
        why=facts["why"],
        stopped=facts.get("stopped", ""),
        best_at=best and best.in_order(layers),
        **parts,
    )


class StoredRecords:
    """The clients' records in the file beside a checkpoint, to be read only."""

    def __init__(self, path: Path, algo: Algorithm, tensors: Mapping[str, Tensor]) -> None:
        first = {name.removeprefix("store.initial."): z for name, z in tensors.items() if name.startswith("store.initial.")}
        self.live: dict[int, int] = {}
        if "store.clients" in tensors:  # in a deployed run, the records stay with the clients
            self.live = dict(zip(tensors["store.clients"].tolist(), tensors["store.slots"].tolist(), strict=True))
        if not first or not self.live:
            self.live = {}
            return
        kind: Any = PrivateLayers if algo.facts.private else type(algo.init(torch.zeros(2))[1])
        self.layout = Layout(kind(**first))
        with guarded(path, lambda: open(path, "rb")) as file:
            # A private copy of each page that somebody changes, so the file stays as it is.
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __contains__(self, client: int) -> bool:
        return client in self.live

    def read(self, client: int) -> Any:
        return self.layout.view(self.memory, ALIGN + self.live[client] * self.layout.nbytes)


def _method(values: Mapping[str, Any]) -> Algorithm:
    return make(values["name"], **{name: value for name, value in values.items() if name != "name"})


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"open: {path} cannot be read: {' '.join(str(error).split())}") from None


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, str] = file.metadata() or {}
    if found.get("format") != FORMAT:
        raise ValueError(f"open: {path} was not written by this version of fedkeel")
    return found
