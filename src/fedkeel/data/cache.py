"""Arrays that are parsed once, written to disk, and mapped into memory from then on.

A data set is a folder of .npy files. Its name holds a hash of the sizes and times of the files that it was read from, so
a changed file is parsed again. The folder appears by a rename, so another process sees all of it or nothing.
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

from fedkeel.data.arrays import Arrays

FORMAT = 1  # part of the hash: with another number, everything that was written before is ignored
UNUSABLE = (OSError, ValueError, EOFError)  # what numpy raises if a folder is missing or damaged
log = logging.getLogger("fedkeel")
_complained = False


def folder() -> Path:
    return Path(os.environ.get("FEDKEEL_CACHE") or "~/.cache/fedkeel").expanduser()


def cached(name: str, reader: str, paths: Sequence[Path | None], read: Callable[[], Arrays]) -> Arrays:
    """The arrays that `read` makes of these files. They come from the cache, or are parsed and put there.

    reader: identifies how the files are parsed. Two ways to read the same file need two words.
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


def cached_array(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """One array, memory-mapped. It is made if the cache does not have it, and stays in memory if nothing can be written."""
    path = folder() / name
    if not path.exists():
        made = make()
        part = path.with_name(f"{os.getpid()}-{name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(part, made)
            os.replace(part, path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            return made
    array: np.ndarray = np.load(path, mmap_mode="c")  # copy on write: torch warns about read-only arrays
    return array


def stamps(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of a file, or of all files below a folder."""
    if not path.is_dir():
        stat = path.stat()
        return [(path.name, stat.st_size, stat.st_mtime_ns)]
    files, folders = [], [str(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    stat = entry.stat()
                    files.append((entry.path, stat.st_size, stat.st_mtime_ns))
    return sorted(files)


def _mapped(place: Path) -> Arrays:
    if not (place / "y.npy").exists():
        raise FileNotFoundError(place)
    # Copy on write: torch needs arrays that can be written to, and the file must not change.
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
    """Moves a complete folder to its place. It replaces a damaged folder there, but not a good one of a faster process."""
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
