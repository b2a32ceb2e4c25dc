"""What a frozen part of a model makes of every text, computed once and kept on disk.

The states of a text depend on its tokens alone, so they are found by these: a hash of the tokens leads to the rows of one
memory-mapped array. Only real tokens are kept, not the padding.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedkeel.data import cache

TOKENS = 8192  # of a forward pass


def keys(x: Tensor) -> np.ndarray:
    """A number for every text of token ids [n, L]; padding does not change it. [n] int64"""
    factors = np.random.default_rng(0x7E87).integers(-(2**63), 2**63 - 1, size=x.shape[1], dtype=np.int64)
    return (x.cpu() * torch.from_numpy(factors)).sum(1).numpy()  # wraps around, as it should


class HiddenStates:
    """States [tokens, h] of many texts, memory-mapped. Workers and copies share the files, and pickles name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = np.load(folder / "keys.npy")  # [n] in increasing order
        self.starts = np.load(folder / "starts.npy")  # [n + 1] the first row of every text
        self.states = np.load(folder / "states.npy", mmap_mode="r")  # [tokens, h] float32

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return HiddenStates, (self.folder,)

    def __deepcopy__(self, memo: dict[int, object]) -> HiddenStates:
        return self

    def of(self, x: Tensor) -> Tensor | None:
        """The states of token ids [n, L] as [n, L, h], zero at the padding; None if a text is not known."""
        asked = keys(x)
        found = np.searchsorted(self.keys, asked).clip(max=len(self.keys) - 1)
        if not np.array_equal(self.keys[found], asked):
            return None
        starts = self.starts[found]
        lengths = self.starts[found + 1] - starts
        real = np.arange(x.shape[1]) < lengths[:, None]  # [n, L]
        rows = (starts[:, None] + np.arange(x.shape[1]))[real]
        out = torch.zeros(*x.shape, self.states.shape[1])
        out[torch.from_numpy(real)] = torch.from_numpy(self.states[rows])
        return out


def remember(identity: str, texts: Sequence[Tensor], states: Callable[[Tensor], Tensor]) -> HiddenStates:
    """The states that `states` computes for all texts (token ids [n, L]); from disk if they were computed before.

    identity: changes whenever the states of a text do.
    """
    unique, lengths, name = _unique(identity, texts)
    folder = cache.folder() / f"hidden-{name}"
    if (folder / "states.npy").exists():
        return HiddenStates(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".hidden-", dir=folder.parent))
    except OSError as error:
        raise ValueError(f"FEDKEEL_CACHE: hidden states cannot be kept in {folder.parent}: {error.strerror}") from None
    try:
        _write(part, unique, lengths, states)
        os.rename(part, folder)
    except OSError:
        if not (folder / "states.npy").exists():  # another process may have been faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return HiddenStates(folder)


def _unique(identity: str, texts: Sequence[Tensor]) -> tuple[Tensor, np.ndarray, str]:
    """Different texts in the order of their keys, their lengths, and the name of the folder for their states."""
    width = max(x.shape[1] for x in texts)
    together = torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in texts])
    digest = hashlib.blake2b(identity.encode(), digest_size=16)
    digest.update(together.numpy().data)
    _, first, of = np.unique(keys(together), return_index=True, return_inverse=True)
    unique = together[torch.from_numpy(first)]
    if not torch.equal(unique[torch.from_numpy(of)], together):
        raise RuntimeError("two different texts have the same key")  # once in 10^9 data sets of 200,000 texts
    return unique, (unique > 0).sum(1).numpy(), digest.hexdigest()


def _write(folder: Path, x: Tensor, lengths: np.ndarray, states: Callable[[Tensor], Tensor]) -> None:
    from rich.progress import track

    width = states(x[:1]).shape[-1]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    need, free = 4 * width * int(starts[-1]), shutil.disk_usage(folder).free
    if need > 0.9 * free:
        raise ValueError(f"lora_layers: the states of all texts need {need:,} bytes in {folder.parent}, {free:,} are free")
    np.save(folder / "keys.npy", keys(x))
    np.save(folder / "starts.npy", starts)
    out = np.lib.format.open_memmap(folder / "states.npy", "w+", dtype=np.float32, shape=(int(starts[-1]), width))
    order = np.argsort(lengths, kind="stable")  # texts of like length together, so that little is padding
    at = 0
    with_bar = track(_batches(lengths[order]), f"states of {len(x):,} texts, {need / 1e6:,.0f} MB", transient=True)
    for size in with_bar:
        rows = order[at : at + size]
        at += size
        longest = int(lengths[rows].max())
        made = states(x[torch.from_numpy(rows), :longest]).float().numpy()
        for row, z in zip(rows, made, strict=True):
            out[starts[row] : starts[row + 1]] = z[: lengths[row]]
    out.flush()


def _batches(lengths: np.ndarray) -> list[int]:
    """Sizes of batches of about TOKENS tokens; lengths in increasing order."""
    sizes, at = [], 0
    while at < len(lengths):
        fits = np.flatnonzero(lengths[at:] * np.arange(1, len(lengths) - at + 1) <= TOKENS)
        sizes.append(max(1, len(fits)))
        at += sizes[-1]
    return sizes
