"""What runs on the nodes of a Ray cluster, and how tensors travel there: as plain bytes, which Ray does not pickle."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedkeel.core.flat import FlatModel
from fedkeel.core.records import down_record
from fedkeel.data.federation import Federation
from fedkeel.engine.allocator import keep_freed_memory
from fedkeel.engine.client_work import Samples, Stack, Work
from fedkeel.errors import describe


def as_bytes(z: Tensor) -> np.ndarray:
    """The bytes of a tensor, [n], its own where it is contiguous and on the CPU. Not its numbers: numpy has no bfloat16."""
    return z.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def record_bytes(record: Any) -> list[np.ndarray]:
    return [as_bytes(z) for z in record]


def tensor_of(data: np.ndarray, like: Tensor) -> Tensor:
    """A tensor as `like` with these bytes, in memory that torch has aligned: matrix products may depend on that."""
    z = torch.empty(like.shape, dtype=like.dtype)
    as_bytes(z)[:] = data
    return z.to(like.device)


def record_of(data: list[np.ndarray], like: Any) -> Any:
    return type(like)(*(tensor_of(one, z) for one, z in zip(data, like, strict=True)))


# The parts of a run that do not change --------------------------------------------------------------------------------


def pack(work: Work, initial: Any) -> tuple[bytes, dict[str, Any]]:
    """(everything but the data, pickled as Ray pickles functions; the data as arrays that Ray need not pickle)."""
    from ray import cloudpickle

    fed = {one.name: getattr(work.fed, one.name) for one in dataclasses.fields(work.fed) if one.name != "test"}
    data: dict[str, Any] = {name: (as_bytes(z), z.dtype, z.shape) for name, z in fed.items() if isinstance(z, Tensor)}
    data |= {name: z for name, z in fed.items() if isinstance(z, np.ndarray)}
    parts = {one.name: getattr(work, one.name) for one in dataclasses.fields(work)}
    parts["fed"] = {name: z for name, z in fed.items() if name not in data}
    parts["objective"] = dataclasses.replace(work.objective, model=None)  # type: ignore[arg-type]
    module = copy.deepcopy(work.objective.model.module).cpu()  # its own parameters, not views of the vector it is bound to
    try:
        return cloudpickle.dumps((parts, module, initial)), data
    except Exception as error:
        told = "model, loss or data hold something that cannot be sent to its workers"
        raise ValueError(f"engine: 'ray': {told}: {describe(error)}; use 'processes'") from error


def unpack(setup: bytes, data: dict[str, Any], device: str) -> tuple[Work, Any]:
    """The same on a node -> (work, initial client record). The data stay where they are, in the object store."""
    from ray import cloudpickle

    parts, module, initial = cloudpickle.loads(setup)
    for name, z in data.items():
        parts["fed"][name] = z if isinstance(z, np.ndarray) else _shared(*z)
    parts["fed"] = Federation(**parts["fed"])
    parts["objective"].model = FlatModel(module.to(device), parts["algo"].facts.private)
    if initial is not None:
        initial = type(initial)(*(z.to(device) for z in initial))
    return Work(**parts), initial


def _shared(data: np.ndarray, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the memory is read-only: batches are copies
        return torch.from_numpy(data).view(dtype).view(shape)


# What travels in a round --------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """One client to run."""

    client: int
    K: int
    drawn: dict[str, float]
    mem: list[np.ndarray] | None  # the bytes of its record; None: that of a client never seen before


class Answer(NamedTuple):
    """What came of n tasks. Rows of clients that failed are undefined."""

    up: list[np.ndarray]  # bytes of every field of the uploads, [n, ...]
    mem: list[np.ndarray]  # bytes of every field of the new client records, [n, ...]
    buffers: np.ndarray  # bytes [n, ...]
    losses: list[float]
    faults: dict[int, str]  # number of the task -> why
    seconds: float


# The worker -----------------------------------------------------------------------------------------------------------


class Actor:
    """A process with one thread that runs clients."""

    def start(self, setup: bytes, data: dict[str, Any]) -> str:
        """Gets ready and returns the node that it runs on."""
        import ray

        keep_freed_memory()
        torch.set_num_threads(1)
        threadpool_limits(1, user_api="blas")
        here = ray.get_runtime_context()
        device = "cuda" if here.get_accelerator_ids().get("GPU") and torch.cuda.is_available() else "cpu"
        self.work, self.initial = unpack(setup, data, device)
        model = self.work.objective.model
        self.down = down_record(self.work.algo, self.work.algo.init(model.vector())[0])
        self.up, self.buffers = self.work.uploads(), model.read_buffers()
        return here.get_node_id()

    @torch.no_grad()
    def clients(self, sent: tuple[list[np.ndarray], np.ndarray], stage: str, t: int, tasks: list[Task]) -> Answer:
        """Runs some clients of a round."""
        start, n = time.perf_counter(), len(tasks)
        down, buffers = record_of(sent[0], self.down), tensor_of(sent[1], self.buffers)
        up, losses, statistics = Stack(self.up[stage], n), [0.0] * n, buffers.new_zeros(n, len(buffers))
        mem = None if self.initial is None else Stack(self.initial, n)
        faults = {}
        for j, (task, samples) in enumerate(zip(tasks, self._samples(t, tasks), strict=False)):
            record = self.initial if task.mem is None else record_of(task.mem, self.initial)
            try:
                result = self.work.one(stage, t, task.client, task.K, task.drawn, down, buffers, record, samples)
            except Exception as error:  # whatever a client's code raises is that client's fault
                faults[j] = describe(error)
                continue
            up.put(j, result.up)
            statistics[j], losses[j] = result.buffers, result.loss
            if mem is not None:
                mem.put(j, result.mem)
        rows = [record_bytes(up.record), [] if mem is None else record_bytes(mem.record), [as_bytes(statistics)]]
        sent_up, sent_mem, (sent_statistics,) = ([z.reshape(n, -1) for z in group] for group in rows)
        return Answer(sent_up, sent_mem, sent_statistics, losses, faults, time.perf_counter() - start)

    def _samples(self, t: int, tasks: list[Task]) -> Iterator[Samples | None]:
        """What each client sees, fetched for several together; None where that failed: each by itself, then, to find out
        whose data it is."""
        with contextlib.suppress(Exception):
            yield from self.work.samples(t, [task.client for task in tasks], [task.K for task in tasks])
        yield from itertools.repeat(None)
