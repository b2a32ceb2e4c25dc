"""The output of the frozen part of a model for every text, computed when the text is first read and kept on disk.

The hidden states of a text depend only on its tokens, so a hash of the tokens leads to the rows of one memory-mapped array.
Padding has no rows. Each text is computed alone: its states then have the same bits, whichever client, batch or process
computes them. A checksum shows whether the states of a text are complete: they may not be computed yet, or the machine may
have stopped while they were written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkeel.data import cache


def keys(x: Tensor) -> np.ndarray:
    """A hash for every text of token ids [n, L]: [n] int64. Padding does not change it."""
    factors = np.random.default_rng(0x7E87).integers(-(2**63), 2**63 - 1, size=x.shape[1], dtype=np.int64)
    return (x.cpu() * torch.from_numpy(factors)).sum(1).numpy()  # wraps around on purpose


class HiddenStates:
    """The states of all texts. Processes and copies share the files; a pickle holds only the name of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = np.load(folder / "keys.npy")  # [n] in increasing order
        self.starts = np.load(folder / "starts.npy")  # [n + 1] text i has the rows starts[i] to starts[i + 1]
        self.sums = np.load(folder / "sums.npy", mmap_mode="r+")  # [n] uint32: checksums of the states that were written
        self.states = np.load(folder / "states.npy", mmap_mode="r+")  # [tokens, h] float32

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return HiddenStates, (self.folder,)

    def __deepcopy__(self, memo: dict[int, object]) -> HiddenStates:
        return self

    def of(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor | None:
        """The states of token ids [n, L] as [n, L, h], zero at the padding. None if a text is not among those of the files.

        compute: computes the states [1, L, h] of one text [1, L].
        """
        wanted = keys(x)
        places = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        if not np.array_equal(self.keys[places], wanted):
            return None
        out = torch.zeros(*x.shape, self.states.shape[1])
        for i, place in enumerate(places):
            states = self._one(int(place), x[i : i + 1], compute)
            out[i, : len(states)] = torch.from_numpy(states)
        return out

    def _one(self, place: int, text: Tensor, compute: Callable[[Tensor], Tensor]) -> np.ndarray:
        rows: np.ndarray = self.states[self.starts[place] : self.starts[place + 1]]
        if self.sums[place] != _sum(rows):
            rows[:] = compute(text[:, : len(rows)])[0].float().cpu().numpy()
            self.sums[place] = _sum(rows)
        return rows


def _sum(rows: np.ndarray) -> int:
    """A checksum that is never 0, the value in a new file."""
    return zlib.crc32(rows.data, 1) or 1


def places_for(identity: str, texts: Sequence[Tensor], width: int) -> HiddenStates:
    """The files for the states [L, width] of these texts (token ids [n, L]). Earlier runs may have filled them.

    identity: two models that compute different states have different identities.
    """
    longest = max(x.shape[1] for x in texts)
    together = torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in texts])
    digest = hashlib.blake2b(f"{identity} {width}".encode(), digest_size=16)
    digest.update(together.numpy().data)
    folder = cache.folder() / f"hidden-{digest.hexdigest()}"
    if not folder.exists():
        try:
            _make(folder, together, width)
        except OSError as error:
            raise ValueError(f"FEDKEEL_CACHE = {cache.folder()} cannot be written: {error.strerror}") from None
    return HiddenStates(folder)


def _make(folder: Path, x: Tensor, width: int) -> None:
    """Makes files without states. They take up disk space only when states are written."""
    names, first, of = np.unique(keys(x), return_index=True, return_inverse=True)
    unique = x[torch.from_numpy(first)]
    if not torch.equal(unique[torch.from_numpy(of)], x):
        raise RuntimeError("two different texts have the same key")  # once in 10^9 data sets of 200,000 texts
    starts = np.concatenate([[0], np.cumsum((unique > 0).sum(1).numpy())]).astype(np.int64)
    folder.parent.mkdir(parents=True, exist_ok=True)
    need, free = 4 * width * int(starts[-1]), shutil.disk_usage(folder.parent).free
    if need > 0.9 * free:
        raise ValueError(f"lora_layers: the states of all texts need {need:,} bytes in {folder.parent}, {free:,} are free")
    part = Path(tempfile.mkdtemp(prefix=".hidden-", dir=folder.parent))
    try:
        np.save(part / "keys.npy", names)
        np.save(part / "starts.npy", starts)
        np.save(part / "sums.npy", np.zeros(len(names), dtype=np.uint32))
        np.lib.format.open_memmap(part / "states.npy", "w+", dtype=np.float32, shape=(int(starts[-1]), width)).flush()
        os.rename(part, folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not folder.exists():  # otherwise another process was faster
            raise
