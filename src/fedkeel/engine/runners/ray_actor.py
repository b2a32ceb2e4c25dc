"""What runs on the nodes of a Ray cluster, and how tensors travel there: as plain bytes, which Ray need not pickle."""

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
from torch import Tensor, nn

from fedkeel.core.device import record_to, to_device
from fedkeel.core.flat import FlatModel
from fedkeel.core.records import down_record
from fedkeel.data.federation import Federation
from fedkeel.engine.client_work import ClientTask, ClientWork, RecordStack, Samples
from fedkeel.engine.machine import keep_freed_memory
from fedkeel.errors import describe


def as_bytes(z: Tensor) -> np.ndarray:
    """The bytes of a tensor, [n]; not a copy if it is contiguous and on the CPU. Bytes, because numpy has no bfloat16."""
    return z.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def record_bytes(record: Any) -> list[np.ndarray]:
    return [as_bytes(z) for z in record]


def tensor_of(data: np.ndarray, like: Tensor) -> Tensor:
    """A tensor like `like` with these bytes. torch allocates it: BLAS may round differently for another alignment."""
    z = torch.empty(like.shape, dtype=like.dtype)
    as_bytes(z)[:] = data
    return to_device(z, like.device)


def record_of(data: list[np.ndarray], like: Any) -> Any:
    return type(like)(*(tensor_of(one, z) for one, z in zip(data, like, strict=True)))


# What stays the same during a run --------------------------------------------------------------------------------


def pack(work: ClientWork, initial: Any) -> tuple[bytes, dict[str, Any]]:
    """(everything but the data, pickled as Ray pickles functions; the data, as arrays that Ray need not pickle)."""
    from ray import cloudpickle

    fed = {one.name: getattr(work.fed, one.name) for one in dataclasses.fields(work.fed) if one.name != "test"}
    data: dict[str, Any] = {name: (as_bytes(z), z.dtype, z.shape) for name, z in fed.items() if isinstance(z, Tensor)}
    data |= {name: z for name, z in fed.items() if isinstance(z, np.ndarray)}
    parts = {one.name: getattr(work, one.name) for one in dataclasses.fields(work)}
    parts["fed"] = {name: z for name, z in fed.items() if name not in data}
    parts["objective"] = dataclasses.replace(work.objective, model=None)  # type: ignore[arg-type]
    module = copy.deepcopy(work.objective.model.module).cpu()  # in the copy, each parameter has memory of its own
    if isinstance(loss := work.objective.loss, nn.Module):
        parts["objective"].loss = copy.deepcopy(loss).cpu()
    try:  # `initial` is in host memory, as all that the store holds; a node without a GPU could not read anything else
        return cloudpickle.dumps((parts, module, initial)), data
    except Exception as error:
        what = "model, loss or data hold something that cannot be sent to its workers"
        raise ValueError(f"engine: 'ray': {what}: {describe(error)}; use 'processes'") from error


def unpack(setup: bytes, data: dict[str, Any], device: str) -> tuple[ClientWork, Any]:
    """The reverse of `pack`, on a node -> (work, initial client record). The data stay in the object store."""
    from ray import cloudpickle

    parts, module, initial = cloudpickle.loads(setup)
    for name, z in data.items():
        parts["fed"][name] = z if isinstance(z, np.ndarray) else _shared(*z)
    parts["fed"] = Federation(**parts["fed"])
    parts["objective"].model = FlatModel(module.to(device), parts["algo"].facts.private)
    if isinstance(loss := parts["objective"].loss, nn.Module):
        parts["objective"].loss = loss.to(device)
    return ClientWork(**parts), initial


def _shared(data: np.ndarray, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch warns that the memory is read-only; batches are copies, so nobody writes to it
        return torch.from_numpy(data).view(dtype).view(shape)


# What travels in an exchange ------------------------------------------------------------------------------------------


class SentTask(NamedTuple):
    """A client's task, and its record."""

    task: ClientTask
    mem: list[np.ndarray] | None  # the bytes of every field of the record; None: the client has none yet


class Answer(NamedTuple):
    """The results of n tasks. Rows of clients that failed are undefined."""

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
        templates = self.work.upload_templates()
        self.uploads = {stage: record_to(like, model.device) for stage, like in templates.items()}
        self.buffers = model.read_buffers()
        return here.get_node_id()

    @torch.no_grad()
    def run_clients(self, sent: tuple[list[np.ndarray], np.ndarray], tasks: list[SentTask]) -> Answer:
        """Runs some clients of an exchange. sent: the bytes of the server's record and of the model's buffers."""
        start, n = time.perf_counter(), len(tasks)
        down, buffers = record_of(sent[0], self.down), tensor_of(sent[1], self.buffers)
        up, losses = RecordStack(self.uploads[tasks[0].task.stage], n), [0.0] * n
        new_buffers = buffers.new_zeros(n, len(buffers))
        mem = None if self.initial is None else RecordStack(self.initial, n)
        faults = {}
        for j, (sent_task, samples) in enumerate(zip(tasks, self._samples(tasks), strict=False)):
            record = self.initial if sent_task.mem is None else record_of(sent_task.mem, self.initial)
            try:
                result = self.work.run_client(sent_task.task, down, buffers, record, samples)
            except (Exception, SystemExit) as error:  # whatever a client's code raises is that client's fault
                faults[j] = describe(error)
                continue
            up.put(j, result.up)
            new_buffers[j], losses[j] = result.buffers, result.loss
            if mem is not None:
                mem.put(j, result.mem)
        rows = [record_bytes(up.record), [] if mem is None else record_bytes(mem.record), [as_bytes(new_buffers)]]
        sent_up, sent_mem, (sent_buffers,) = ([z.reshape(n, -1) for z in group] for group in rows)
        return Answer(sent_up, sent_mem, sent_buffers, losses, faults, time.perf_counter() - start)

    def _samples(self, tasks: list[SentTask]) -> Iterator[Samples | None]:
        """The samples of each client, fetched for several clients together. After a failure None for all that follow: then
        each client fetches its own samples, and only the one whose data is bad fails."""
        with contextlib.suppress(Exception):
            yield from self.work.samples([sent_task.task for sent_task in tasks])
        yield from itertools.repeat(None)
