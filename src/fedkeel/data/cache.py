"""Parsed arrays, written once and mapped into memory ever after.

A data set is a folder of .npy files whose name holds a hash of the sizes and times of the files it was read from, so that a
changed file is read again. It appears by a rename: another process sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedkeel.data.readers.files import Arrays, stamps

FORMAT = 1  # part of the hash: a new number makes all that was written before unknown
UNUSABLE = (OSError, ValueError, EOFError)  # what a folder that is not there or damaged makes numpy raise
log = logging.getLogger("fedkeel")
_complained = False


def folder() -> Path:
    return Path(os.environ.get("FEDKEEL_CACHE") or "~/.cache/fedkeel").expanduser()


def cached(name: str, reader: str, paths: Sequence[Path | None], read: Callable[[], Arrays]) -> Arrays:
    """The arrays that `read` makes of these files: from the cache, or parsed and put there.

    reader: names what parses them, so that two readings of one file are told apart.
    """
    facts = [FORMAT, reader, *(stamps(path) if path else None for path in paths)]
    key = hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()
    place = folder() / f"{name}-{key}"
    with contextlib.suppress(*UNUSABLE):
        return _mapped(place)
    arrays = read()
    try:
        _write(place, arrays)
        return _mapped(place)
    except OSError as error:
        _complain(error)
        return arrays


def _mapped(place: Path) -> Arrays:
    if not (place / "y.npy").exists():
        raise FileNotFoundError(place)
    # Copy on write: torch wants arrays that could be written to, the file stays as it is.
    return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False) for path in sorted(place.glob("*.npy"))}


def _write(place: Path, arrays: Arrays) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        _publish(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, place: Path) -> None:
    """Moves a complete folder to its place; a damaged one there gives way, that of a faster process is kept."""
    try:
        temporary.rename(place)
    except OSError:
        with contextlib.suppress(*UNUSABLE):
            _mapped(place)
            return
        stale = Path(tempfile.mkdtemp(prefix=".stale-", dir=place.parent))
        with contextlib.suppress(OSError):
            place.rename(stale / "old")
        shutil.rmtree(stale, ignore_errors=True)
        temporary.rename(place)


def _complain(error: OSError) -> None:
    global _complained
    if not _complained:
        log.warning("data: the cache %s cannot be written (%s); data sets are kept in memory", folder(), error.strerror)
    _complained = True
