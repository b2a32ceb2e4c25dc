"""The directory of a run: the names of its files, and how to read and write them.

Every file has a checksum, so that damage is noticed: the checkpoint of every tensor (checkpoint.py), client memory of every
record (store.py), the history of every line (history_file.py), the summary and the config of their whole text. The summary
has digests of the model and the history.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import io
import logging
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedkeel.data.schema import FILE as SCHEMA
from fedkeel.data.schema import Schema
from fedkeel.engine.machine import made_with
from fedkeel.engine.result import Run
from fedkeel.engine.state import history_file, store
from fedkeel.engine.state.checkpoint import Checkpoint, load_checkpoint, round_of
from fedkeel.engine.state.history_file import Extent, HistoryFile, read_extent
from fedkeel.errors import Damaged, StorageError, refuse
from fedkeel.files import Claim, as_toml, guarded, sealed, unsealed, write_atomically

MODEL = "model.safetensors"  # the final weights
LAYERS = "layers.pt"  # the modules of the model without their weights
OURS = ("torch.nn.modules.", "fedkeel.models.")  # only layers of these packages are written to LAYERS
READERS = ("fedkeel.data.tokens.Reading", "fedkeel.data.tokens.WordTokenizer")  # how a model reads texts
CONFIG = "config.toml"  # all settings
HISTORY = history_file.FILE  # one row per round
CHECKPOINT = "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"  # the one before; a run goes on from it if the last one is damaged
SET_ASIDE = "checkpoint-damaged.safetensors"
CLIENTS = store.FILE  # client memory
SUMMARY = "summary.json"  # written last: it makes a run complete
ERROR = "error.txt"  # why a run of a study has failed
STATE = (CHECKPOINT, PREVIOUS, SET_ASIDE, CLIENTS)  # what a run resumes from
RESULTS = (CONFIG, HISTORY, MODEL, LAYERS, SUMMARY, SCHEMA)
HEAVY = (*STATE, MODEL, LAYERS)  # large files that the tables and figures of a study do not need
FILES = (*STATE, *RESULTS, ERROR)
# Settings that say how to carry a run out, not what it computes. They may change when the run resumes.
HOW = ("data_dir", "engine", "workers", "timeout", "ray_address", "min_clients")
SEAL = "# checksum "  # the start of the last line of a config
log = logging.getLogger("fedkeel")


def holds_checkpoint(path: Path) -> bool:
    return any((path / name).exists() for name in (CHECKPOINT, PREVIOUS))


def holds_run(path: Path) -> bool:
    """Would a new run in this directory destroy something?"""
    return holds_checkpoint(path) or (path / SUMMARY).exists()


def summary(path: Path, rounds: int) -> dict[str, Any] | None:
    """The summary of a run with this number of rounds, or of one that a callback stopped before; None if the run in the
    directory is not complete."""
    try:
        found = unsealed((path / SUMMARY).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if found.get("rounds") == rounds or found.get("stopped") else None


def damage(path: Path, found: dict[str, Any]) -> str | None:
    """What is wrong with the files of a complete run, in words; None if nothing is. found: its summary.

    A study deletes the model and the checkpoint of a run together. That is no damage.
    """
    for name, digest in found.get("digests", {}).items():
        if not (path / name).exists():
            if name != MODEL or holds_checkpoint(path):
                return f"{path / name} is missing"
        elif _digest(guarded(path / name, (path / name).read_bytes)) != digest:
            return f"{path / name} is damaged: it is not what the run wrote"
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_config(path: Path) -> None:
    """Raises Damaged if the config in a directory is not what the run wrote. Configs of version 0.1.0 have no checksum."""
    content = guarded(path / CONFIG, (path / CONFIG).read_bytes)
    text, mark, found = content.rpartition(SEAL.encode())
    if mark and found.strip() != _seal(text):
        raise Damaged(
            f"resume: {path / CONFIG} is not what the run wrote; give changes as options, such as --rounds. If the file is "
            "right as it is, delete its last line"
        )


def _seal(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()


def forget_failure(path: Path) -> None:
    """Deletes what `mark_failed` wrote: the run starts again."""
    guarded(path / ERROR, lambda: (path / ERROR).unlink(missing_ok=True))


def mark_failed(path: Path, error: str) -> None:
    """Writes down why a run has failed, for reports."""
    guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
    write_atomically(path / ERROR, error.encode())


def why_failed(path: Path) -> str | None:
    """Why the run in a directory has failed; None if it did not fail."""
    try:
        return (path / ERROR).read_text()
    except OSError:
        return None


def history(path: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """The history of a run, one row per round. rounds: the number of rows that it must have."""
    rows = history_file.read_all(path)
    if rounds is not None and len(rows) != rounds:
        raise ValueError(f"out: {path / HISTORY} has {len(rows)} rounds, not {rounds}; delete {path} to run it again")
    return rows


def next_round(path: Path) -> int | None:
    """The round that follows the checkpoint in a directory; None if there is no checkpoint that can be read."""
    rounds = (round_of(path / name) for name in (CHECKPOINT, PREVIOUS))
    return next((t for t in rounds if t is not None), None)


def check_out(out: object, resume: bool) -> None:
    """Raises if `out` cannot be the directory of a run."""
    if not isinstance(out, str | os.PathLike | None):
        raise refuse("out", out, "a directory, or None")
    if resume and not out:
        raise ValueError("resume = True is not allowed without out; it must be the directory of the run to go on with")


def clear(path: Path) -> None:
    """Deletes the files of the run in a directory. Other files stay."""
    with RunDirectory(path, resume=True):  # raises if another run is going on there
        for file in (path / name for name in FILES):
            guarded(file, partial(file.unlink, missing_ok=True))


class RunDirectory:
    """Writes the files of one run. Holds a lock until it is closed, so that nobody else trains in the same directory."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.checkpoint, self.previous = path / CHECKPOINT, path / PREVIOUS
        self.store = path / CLIENTS
        self.history = HistoryFile(path)
        guarded(path, lambda: path.mkdir(parents=True, exist_ok=True))
        if not os.access(path, os.W_OK):
            raise StorageError(f"out: cannot write {path}: Permission denied")
        if holds_checkpoint(path) and not resume:
            raise ValueError(f"out: {path} already holds a run; pass resume=True to go on with it, or another directory")
        self.claim = Claim(path / "lock", "another process is training")
        if not holds_checkpoint(path):
            guarded(self.store, lambda: self.store.unlink(missing_ok=True))

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.claim.release()

    def recover(self, use: Callable[[Checkpoint, list[dict[str, Any]]], None]) -> None:
        """Calls `use` with the last checkpoint that is whole, and with the history up to it.

        `use` raises Damaged if client memory does not fit the checkpoint; then the one before is tried. Without any
        checkpoint nothing happens.
        """
        problems: list[Damaged] = []
        for path in (self.checkpoint, self.previous):
            if not path.exists():
                continue
            try:
                found = load_checkpoint(path)
                if path == self.checkpoint:  # the next run may need the records of the one before
                    found.tensors |= _older_slots(self.previous)
                old = found.facts.get("history")  # version 0.1.0 kept the rows in the checkpoint
                use(found, read_extent(self.path, Extent(*found.facts["extent"])) if old is None else old)
            except Damaged as error:
                problems.append(error)
                continue
            if path == self.previous:
                self._go_back(problems)
            return
        if problems:
            raise problems[0]

    def _go_back(self, problems: list[Damaged]) -> None:
        """Makes the checkpoint before the last one the last one."""
        why = problems[0] if problems else f"{self.checkpoint} is missing"
        log.warning("%s; the run goes on from the checkpoint before it, at round %s", why, round_of(self.previous))
        if self.checkpoint.exists():
            guarded(self.checkpoint, lambda: os.replace(self.checkpoint, self.path / SET_ASIDE))
        guarded(self.checkpoint, lambda: os.replace(self.previous, self.checkpoint))

    def begin(self, config: dict[str, Any], history: list[dict[str, Any]], schema: Schema | None = None) -> None:
        """Writes the config, and the history up to the checkpoint: later rows will be computed again.

        schema: how the data were read, for other files that must be read in the same way.
        """
        if schema is not None:
            schema.save(self.path / SCHEMA)
        if (found := summary(self.path, len(history))) and (wrong := damage(self.path, found)):
            log.warning("%s; it is written again", wrong)
        text = tomli_w.dumps(as_toml(config)).encode()
        write_atomically(self.path / CONFIG, text + SEAL.encode() + _seal(text) + b"\n")
        self.history.begin(history)

    def end(self, run: Run, data: str | None) -> None:
        """Writes model and summary. data: the fingerprint of the data and their split."""
        digests = {MODEL: _digest(write_model(run.model, self.path)), HISTORY: _digest(self.history.path.read_bytes())}
        about = run.summary() | {"data": data, "made_with": made_with(), "digests": digests}
        write_atomically(self.path / SUMMARY, sealed(about, indent=2).encode())


def _older_slots(path: Path) -> dict[str, Tensor]:
    """The slots of client memory that the checkpoint before the last one needs; empty if it is missing or damaged."""
    try:
        return {store.OLDER: load_checkpoint(path).tensors.get("store.slots", torch.zeros(0, dtype=torch.int64))}
    except Damaged:
        return {}


# The model ---------------------------------------------------------------------------------------------------------------


def write_model(model: nn.Module, path: Path) -> bytes:
    """Writes the weights, and the layers if `fk.open` can rebuild them without running code from a file.

    Returns the content of the file with the weights.
    """
    weights = {name: z.detach().cpu().contiguous().clone() for name, z in model.state_dict().items()}
    saved = save(weights)
    write_atomically(path / MODEL, saved)
    if all(f"{type(part).__module__}.".startswith(OURS) for part in model.modules()):
        content = io.BytesIO()
        torch.save(copy.deepcopy(model).to("meta"), content)
        if layer_classes(content.getvalue()) is not None:
            write_atomically(path / LAYERS, content.getvalue())
    return saved


def layer_classes(content: bytes) -> list[Any] | None:
    """The classes that a file of layers names; None if one of them is neither torch's nor fedkeel's."""
    found = []
    for name in torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)):
        place, _, attribute = name.rpartition(".")
        if name not in READERS and not f"{place}.".startswith(OURS):
            return None
        one = getattr(importlib.import_module(place), attribute, None)
        if name not in READERS and not (isinstance(one, type) and issubclass(one, nn.Module)):
            return None
        found.append(one)
    return found
