"""What a client keeps between its rounds, on the client: in Flower's Context, and in a file for the day it restarts.

Records are numbered, and the server says with every order from which number to go on. So an answer that was lost, late or
refused leaves the client where it was: the record made for it is never asked for. The last few are kept, since a server that
is resumed from its checkpoint may ask for one before the last.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedkeel.deploy.messages import NEW, Refused, to_arrays, to_record
from fedkeel.files import write_atomically

KEEP = 3  # the one to go on from, that of a survey, that of the local steps
FORMAT = "fedkeel-client-1"
OWNER = "fedkeel.run"  # in Context.state: whose records these are


def directory(context: Context) -> Path:
    """Where files of client memory lie: `state` in the node's config, or a folder of Flower's own home."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    return Path(str(context.node_config.get("state") or Path(home) / "fedkeel"))


class Memory:
    """The records of one client in one run."""

    def __init__(self, context: Context, run: str, client: int, initial: Any) -> None:
        self.context, self.run, self.initial = context, run, initial
        self.path = directory(context) / f"{run}-{client}.safetensors"
        self.records = self._in_context()

    def read(self, number: int) -> Any:
        """The record with this number, None if it is lost."""
        if number == NEW:
            return self.initial
        if number not in self.records:  # a new process, or a Context that Flower has not got back yet
            self.records |= self._in_file()
        return self.records.get(number)

    def write(self, base: int, number: int, record: Any) -> None:
        """Keeps a new record, made from `base`; what had been made from it before was not accepted."""
        older = sorted(z for z in self.records if z <= base)
        self.records = {z: self.records[z] for z in older[1 - KEEP :]} | {number: record}
        self._to_file()
        self._to_context()

    def _in_context(self) -> dict[int, Any]:
        state = self.context.state
        if state.config_records.get(OWNER, {}).get("run") != self.run:
            return {}  # Flower may hand out the state of another run
        named = {name: arrays for name, arrays in state.array_records.items() if name.startswith("client.")}
        return {int(name.removeprefix("client.")): to_record(arrays, self.initial) for name, arrays in named.items()}

    def _to_context(self) -> None:
        state = self.context.state
        for name in [name for name in state.array_records if name.startswith("client.")]:
            del state[name]
        for number, record in self.records.items():
            state[f"client.{number}"] = to_arrays(record) if any(z.numel() for z in record) else ArrayRecord()
        state[OWNER] = ConfigRecord({"run": self.run})

    def _in_file(self) -> dict[int, Any]:
        try:
            with safe_open(self.path, framework="pt") as file:
                if (file.metadata() or {}).get("format") != FORMAT:
                    return {}
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            return {}
        try:
            return self._records(named)
        except (Refused, ValueError):
            return {}  # another model or method: not this client's record

    def _records(self, named: dict[str, Any]) -> dict[int, Any]:
        records: dict[int, Any] = {}
        for number in {int(name.partition(".")[0]) for name in named}:
            values = [named.get(f"{number}.{field}") for field in self.initial._fields]
            for z, like in zip(values, self.initial, strict=True):
                if z is None or z.shape != like.shape or z.dtype != like.dtype:
                    raise Refused("the record has another form")
            # Copies, which lie where torch puts them: products depend on that.
            copies = (z.to(like.device, copy=True) for z, like in zip(values, self.initial, strict=True))
            records[number] = type(self.initial)(*copies)
        return records

    def _to_file(self) -> None:
        named = {
            f"{number}.{field}": z.detach().cpu().clone()
            for number, record in self.records.items()
            for field, z in record._asdict().items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.path, save(named, {"format": FORMAT}), mode=0o600)
