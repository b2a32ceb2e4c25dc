"""The records that a client keeps between rounds, in Flower's Context and in a file that survives a restart.

Every record has a number. Each request says which number to start from. If a reply is lost, late or refused,
the server never asks for the record that belongs to it, and the client starts from the older one again. The
client keeps its last few records, because a server that resumes from its checkpoint may ask for an older one.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkeel.core.records import Record, check_finite, check_ranges
from fedkeel.deploy.arrays import to_arrays, to_record
from fedkeel.deploy.errors import InvalidMessage, WrongNodeConfig
from fedkeel.deploy.messages import NEW
from fedkeel.engine.state.checksums import checksum, fits
from fedkeel.files import write_atomically

KEEP = 3  # records: the one to start from, the one that a survey made, the one that the local steps made
FORMAT = "fedkeel-client-1"
SUMS = "sums"  # in the file's metadata: a checksum of every tensor
RUN = "fedkeel.run"  # in Context.state: the run that the records belong to
PREFIX = "client."  # in Context.state: a record is called client.NUMBER


class ClientMemory:
    """The records of one client in one run."""

    def __init__(self, context: Context, run: str, client: int, initial: Record) -> None:
        self.context, self.run, self.initial = context, run, initial
        self.path = memory_directory(context) / f"{run}-{client}.safetensors"
        self.records = self._from_context()

    def read(self, number: int) -> Record | None:
        """The record with this number, or None if it is lost."""
        if number == NEW:
            return self.initial
        if number not in self.records:  # after a restart, or while Flower has not stored the last Context yet
            self.records |= self._from_file()
        return self.records.get(number)

    def write(self, base: int, number: int, record: Record) -> None:
        """Keeps a new record that was made from the record `base`.

        Records between the two belong to replies that the server did not accept, and are dropped.
        """
        older = sorted(z for z in self.records if z <= base)
        self.records = {z: self.records[z] for z in older[1 - KEEP :]} | {number: record}
        self._to_file()
        self._to_context()

    def _from_context(self) -> dict[int, Record]:
        state = self.context.state
        owner = state.config_records.get(RUN)
        if owner is None or owner.get("run") != self.run:
            return {}  # Flower may hand out the state of another run
        return {
            int(name.removeprefix(PREFIX)): to_record(arrays, self.initial)
            for name, arrays in state.array_records.items()
            if name.startswith(PREFIX)
        }

    def _to_context(self) -> None:
        state = self.context.state
        for name in [name for name in state.array_records if name.startswith(PREFIX)]:
            del state[name]
        for number, record in self.records.items():
            state[f"{PREFIX}{number}"] = to_arrays(record) if any(z.numel() for z in record) else ArrayRecord()
        state[RUN] = ConfigRecord({"run": self.run})

    def _from_file(self) -> dict[int, Record]:
        try:
            with safe_open(self.path, framework="pt") as file:
                if (file.metadata() or {}).get("format") != FORMAT:
                    return {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                sums = json.loads((file.metadata() or {}).get(SUMS, "{}"))
            if any(name in sums and not fits(z, sums[name]) for name, z in tensors.items()):
                return {}
            numbers = {int(name.partition(".")[0]) for name in tensors}
            return {number: self._record(tensors, number) for number in numbers}
        except (OSError, SafetensorError, ValueError, AttributeError):
            return {}  # missing, damaged, or written for another model or method

    def _record(self, tensors: dict[str, Tensor], number: int) -> Record:
        values: list[Any] = []
        for field, like in self.initial._asdict().items():
            z = tensors.get(f"{number}.{field}")
            if z is None or z.shape != like.shape or z.dtype != like.dtype:
                raise InvalidMessage(f"{field} of record {number} has another shape or dtype")
            # BLAS may round differently for another alignment, so torch allocates the memory.
            values.append(z.to(like.device, copy=True))
        record = type(self.initial)(*values)
        check_finite(record)
        check_ranges(record)
        return record

    def _to_file(self) -> None:
        tensors = {
            f"{number}.{field}": z.detach().cpu().clone()
            for number, record in self.records.items()
            for field, z in record._asdict().items()
        }
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "posix" and folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise WrongNodeConfig("node-config: other users may write to the folder `state`; chmod go-w makes it safe")
        sums = {name: checksum(z) for name, z in tensors.items()}
        write_atomically(self.path, save(tensors, {"format": FORMAT, SUMS: json.dumps(sums)}), mode=0o600)


def memory_directory(context: Context) -> Path:
    """The folder of the record files: `state` in the node-config, otherwise a folder in Flower's home."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    return Path(str(context.node_config.get("state") or Path(home) / "fedkeel"))
