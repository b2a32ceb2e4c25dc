"""The two small runs of every method whose results are kept in this folder."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedkeel as fk
from tests.tasks import full_only

CLIENTS, COHORT, ROUNDS = 6, 3, 3
COMMON: dict[str, Any] = {"rounds": ROUNDS, "batch_size": 8, "engine": "sequential", "device": "cpu", "progress": False}


def dense() -> nn.Module:
    """Linear layers with ReLU: its gradient is written out by hand in the package."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


def convolutional() -> nn.Module:
    """Convolutions and batch normalisation: its gradient comes from autograd, and it has buffers."""
    first = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(first, second, nn.Linear(36, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"dense": dense, "convolutional": convolutional}
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {"local_steps": 4, "weight_decay": 0.01, "lr_decay": 0.9, "seed": 5},
    "convolutional": {"local_epochs": 1, "seed": 6},
}


def clients() -> fk.Federation:
    """Six clients with 11 to 31 random samples each: unequal numbers of local steps, and a short last batch."""
    rng = np.random.default_rng(0)
    sizes = (11, 15, 19, 23, 27, 31)
    arrays = [(rng.normal(size=(n, 64)), rng.integers(0, 10, size=n)) for n in sizes]
    return fk.Federation.from_arrays([(x.astype(np.float32), y) for x, y in arrays])


def finished_run(method: str, task: str, dtype: torch.dtype) -> fk.Run:
    cohort = CLIENTS if full_only(method) else COHORT
    return fk.train(MODELS[task], clients(), method, cohort=cohort, dtype=dtype, **COMMON, **SETTINGS[task])


def tensors_of(run: fk.Run) -> Iterator[tuple[str, Tensor]]:
    """The complete result of a run: the model with its buffers, the server record and every client record."""
    yield "params", run.params
    for name, z in run.model.named_buffers():
        yield f"buffer {name}", z
    for name, z in run.server._asdict().items():
        yield f"server {name}", z
    for client, record in run.clients.items():
        for name, z in () if record is None else record._asdict().items():
            yield f"client {client} {name}", z


def digests(run: fk.Run) -> dict[str, str]:
    """A hash of the exact bits of the weights, the server record and the client records."""
    groups: dict[str, Any] = {}
    for name, z in tensors_of(run):
        group = groups.setdefault(name.split()[0], hashlib.blake2b(digest_size=8))
        group.update(name.encode() + np.ascontiguousarray(z.detach().numpy()).tobytes())
    return {group: digest.hexdigest() for group, digest in groups.items()}


def numbers(run: fk.Run) -> dict[str, list[float]]:
    """Two numbers for every tensor: its norm, and its product with a fixed vector that tells entries apart."""
    found = {}
    for name, z in tensors_of(run):
        flat = z.detach().double().flatten()
        found[name] = [float(flat.norm()), float(flat @ torch.cos(torch.arange(len(flat)).double() * 1.7))]
    return found


def machine() -> str:
    """Bits may differ between processors and between releases of torch, so digests are kept for each of them."""
    processor = {}
    if Path("/proc/cpuinfo").exists():
        lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        processor = {name.strip(): value.strip() for name, _, value in lines}
    names = [processor.get(key, "") for key in ("vendor_id", "cpu family", "model")]
    words = [*(name for name in names if name), torch.backends.cpu.get_cpu_capability(), f"torch{torch.__version__}"]
    return "-".join(words if any(names) else [platform.machine(), *words])
