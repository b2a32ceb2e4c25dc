"""Runs on the pretended GPU, in a process of their own: `python -m tests.gpu.pretended_runs [--old-fault] [CASE ...]`.

Prints one JSON object: the name of each case -> {"error": text or None, "distance": the largest difference to the CPU, ...}.
A difference is relative to the largest number of its tensor, or to 1 if that is larger.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import fedkeel as fk
from fedkeel.core import device
from fedkeel.engine.runners import devices
from tests.gpu.pretend import NAME, install, pretending
from tests.tasks import digits_fed, full_only, small_net

FED = digits_fed(4, concentration=10.0)  # nobody has a last batch of one sample, which BatchNorm refuses

SMALL = small_net(8)


def dense_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))


def train(name: str = "scaffold", model: Callable[[], nn.Module] = SMALL, **kw: Any) -> fk.Run:
    """Two rounds; in the second one, some clients have a record in the store and another one is new."""
    cohort: Any = 4 if full_only(name) else [[0, 1, 2], [1, 2, 3], [0, 1, 3]]
    settings: dict[str, Any] = {"rounds": 2, "cohort": cohort, "local_steps": 2, "batch_size": 8, "evaluate_every": 0}
    settings |= {"engine": "sequential", "dtype": torch.float64, **kw}
    return fk.train(model, FED, name, progress=False, **settings)


def resumed(first: str, then: str) -> fk.Run:
    """Two rounds on the first device, then another on the second, from the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        train("scaffold", model=norm_net, device=first, out=folder, rounds=2)
        return train("scaffold", model=norm_net, device=then, out=folder, rounds=3, resume=True)


def cases() -> dict[str, tuple[Callable[[], fk.Run], Callable[[], fk.Run]]]:
    """name -> (a run on the pretended GPU, the same run on the CPU)."""
    kinds: dict[str, dict[str, Any]] = {name: {"name": name} for name in fk.algorithms()}
    kinds |= {f"dense {name}": {"name": name, "model": dense_net} for name in ("fedavg", "scaffold", "fed-ams", "mime")}
    kinds |= {
        f"norm {name}": {"name": name, "model": norm_net} for name in ("fedavg", "scaffold", "fedbn", "moon", "gradma-w")
    }
    kinds["dropout"] = {"model": dropout_net}
    kinds["options"] = {"weight_decay": 0.1, "clip": 0.5, "weights": "samples", "evaluate_every": 1, "model": norm_net}
    kinds["metrics"] = {"metrics": ["train", "gradient_norm", "drift", "consistency", "tracking"], "evaluate_every": 1}
    kinds["metrics qp"] = {"name": "gradma", "metrics": ["qp"], "evaluate_every": 1}
    found = {
        case: (functools.partial(train, device=NAME, **kw), functools.partial(train, device="cpu", **kw))
        for case, kw in kinds.items()
    }
    both = [f"{NAME}:0", f"{NAME}:1"]
    # The autograd of torch knows one device only that is written in Python, so the gradients must be written out.
    for name in ("fedavg", "scaffold", "fed-ams", "gradma", "scaffnew"):
        kw = {"name": name, "model": dense_net}
        on_both = functools.partial(train, devices=both, **{**kw, "engine": "auto"})
        found[f"devices {name}"] = (on_both, functools.partial(train, device="cpu", **kw))
    on_cpu = functools.partial(resumed, "cpu", "cpu")
    found["from GPU to CPU"] = (functools.partial(resumed, NAME, "cpu"), on_cpu)
    found["from CPU to GPU"] = (functools.partial(resumed, "cpu", NAME), on_cpu)
    for name in ("fedavg", "scaffold", "fedsps"):
        kw = {"name": name, "engine": "vectorized", "model": dense_net}
        found[f"vectorized {name}"] = (
            functools.partial(train, device=NAME, **kw),
            functools.partial(train, device="cpu", **kw),
        )
    return found


def tensors(run: fk.Run) -> Iterator[torch.Tensor]:
    yield run.params
    yield from run.server
    yield from run.model.state_dict().values()
    for i in range(len(run.clients)):
        yield from run.clients[i] or ()


def compared(on_gpu: Callable[[], fk.Run], on_cpu: Callable[[], fk.Run]) -> dict[str, Any]:
    try:
        with pretending():
            one = on_gpu()
            mine = [z.cpu() for z in tensors(one)]
            places = sorted({str(z.device) for z in tensors(one)})
        if faults := [row["faults"] for row in one.history if row["dropped"]]:
            raise RuntimeError(f"clients were dropped: {faults}")
        other = on_cpu()
        pairs = [(a.double(), b.double()) for a, b in zip(mine, tensors(other), strict=True) if a.numel()]
        apart = [float((a - b).abs().max() / b.abs().max().clamp_min(1.0)) for a, b in pairs]
        return {"error": None, "distance": max(apart), "places": places, "engine": one.engine}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def in_threads() -> None:
    """torch's modes hold for one thread, so the threads of several devices have to begin their own."""
    run = devices.Place.run

    def inside(*args: Any) -> Any:
        with pretending():
            return run(*args)

    devices.Place.run = inside  # type: ignore[method-assign]


@contextlib.contextmanager
def old_fault() -> Iterator[None]:
    """Clients get their records where the store keeps them, as before there was a border."""
    true, device.record_to = device.record_to, lambda record, device: record
    checks, device.check_device = device.check_device, lambda what, record, device: None
    try:
        yield
    finally:
        device.record_to, device.check_device = true, checks


if __name__ == "__main__":
    install()
    in_threads()
    chosen = [word for word in sys.argv[1:] if word != "--old-fault"] or list(cases())
    with old_fault() if "--old-fault" in sys.argv else contextlib.nullcontext():
        print(json.dumps({name: compared(*pair) for name, pair in cases().items() if name in chosen}))
