"""What runs on the nodes of a Ray cluster, and how tensors travel there: as plain bytes, which Ray does not pickle."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedkeel.core.algorithm import down_record
from fedkeel.core.flat import FlatModel
from fedkeel.data.federation import Federation
from fedkeel.engine.memory import keep_freed_memory
from fedkeel.engine.sequential import describe
from fedkeel.engine.work import Work


def as_bytes(z: Tensor) -> np.ndarray:
    """The bytes of a tensor, [n], its own where it is contiguous and on the CPU. Not its numbers: numpy has no bfloat16."""
    return z.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def record_bytes(record: Any, like: Any = None) -> list[np.ndarray]:
    """The bytes of every tensor of a record, in the dtypes of `like`."""
    return [
        as_bytes(z if kind is None else z.to(kind.dtype))
        for z, kind in zip(record, like or [None] * len(record), strict=True)
    ]


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
    data = {name: (as_bytes(z), z.dtype, z.shape) for name, z in fed.items() if isinstance(z, Tensor)}
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
    def client(
        self,
        sent: tuple[list[np.ndarray], np.ndarray],
        stage: str,
        t: int,
        client: int,
        K: int,
        drawn: dict[str, float],
        mem: list[np.ndarray] | None,
    ) -> Any:
        """(upload, new record, buffers, loss) of one client, in bytes; or why it failed."""
        try:
            down, buffers = record_of(sent[0], self.down), tensor_of(sent[1], self.buffers)
            record = self.initial if mem is None else record_of(mem, self.initial)
            result = self.work.one(stage, t, client, K, drawn, down, buffers, record)
        except Exception as error:
            return describe(error)
        new = None if result.mem is None else record_bytes(result.mem, self.initial)
        return record_bytes(result.up, self.up[stage]), new, as_bytes(result.buffers), result.loss
